"""``python -m model.inference.terminal`` on a pipe and at a real pseudo-terminal."""

import io
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from model.inference.screen import Screen
from tests.waiting import PATIENCE

from reciting_model import (  # isort: skip
    ARGUMENT, CONTENT, CONTEXT, REASONING, TOOL, VALUE_TEXT, make_checkpoint,
)  # fmt: skip
from small_tokenizer import train_tokenizer  # isort: skip

ROOT = Path(__file__).parents[4]
PROMPT = "you> "
SECONDS_TO_TYPE_AGAIN = 5.0


@pytest.fixture
def command(folders):
    names = [f"{name}={folder}" for name, folder in folders.items()]
    return [sys.executable, "-m", "model.inference.terminal", *names]


@pytest.fixture
def variables():
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TERM": "xterm", "NO_COLOR": "1"}


def test_a_pipe_gets_answers_alone(command, variables):
    lines = ["hello", "/model caller", "find it", "at noon", "/history"]
    done = subprocess.run(
        command, input="\n".join(lines), env=variables, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    call = f'{TOOL}({ARGUMENT}="{VALUE_TEXT}")'
    # The caller calls again after its result; the next line, a command, is what it gets then, and so on.
    assert done.stdout.splitlines()[:4] == [CONTENT, "now caller", call, call]
    assert REASONING not in done.stdout and "\033" not in done.stdout


def test_commands(command, variables):
    mistakes = ["/thinking maybe", "/temperature", "/temperature -1", "/tools axe", "/nonsense"]
    looks = ["/model", "/history", "/new", "/history", "/help", "/quit", "unread"]
    lines = ["/thinking off", "hello", "/tools calc", *mistakes, *looks]
    done = subprocess.run(
        command, input="\n".join(lines), env=variables, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1, done.stderr
    out = done.stdout
    assert done.stderr.count("error: ") == len(mistakes) and "error: " not in out
    assert out.count(CONTENT) == 2
    assert f"user: hello\nassistant: {CONTENT}\na new dialogue\n/new" in out
    assert "* speaker" in out and "  caller" in out and "unread" not in out


def test_a_folder_that_is_no_checkpoint(variables, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "model.inference.terminal", f"x={tmp_path}"], env=variables,
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--first", "nobody"], "error: --first nobody is not among the checkpoints caller, speaker\n"),
        (["--device", "gpu"], "error: --device gpu is no device of PyTorch's; say cpu, or cuda on a GPU\n"),
    ],
)
def test_a_first_checkpoint_or_a_device_that_is_none(command, variables, options, sentence):
    done = subprocess.run(
        [*command, *options], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)


def test_an_answer_that_is_only_thinking_is_said_on_a_pipe(command, variables):
    done = subprocess.run(
        [*command, "--max-tokens", "2"], input="hello\nhello\n", env=variables, capture_output=True,
        text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "(only thinking, 2 tokens)\n" * 2), done.stderr


def test_a_message_at_which_the_engine_fails_is_an_error(command, variables, tmp_path):
    shutil.copytree(command[-1].partition("=")[2], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"].fill_(3e38)  # finite, as its products are not
    save_file(tensors, tmp_path / "model.safetensors")
    done = subprocess.run(
        [*command, f"wild={tmp_path}"], input="hello\n/history\n/model speaker\nhello\n", env=variables,
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: the engine failed at this message") and "not finite" in done.stderr
    assert done.stdout.splitlines() == ["now speaker", CONTENT]  # nothing of it is left in the history


def test_an_answer_without_text_on_a_pipe():
    written = io.StringIO()
    screen = Screen(io.StringIO(), written, io.StringIO())
    for deltas in ([], [{"content": "yes"}], [{"reasoning_content": "hm"}, {"content": " "}]):
        for delta in deltas:
            screen.show(delta)
        screen.end_answer("3 tokens", ", 5 tokens/s")
    assert written.getvalue() == "(no text, 3 tokens)\nyes\n (only thinking, 3 tokens)\n"


@pytest.mark.parametrize("locale", ["C.UTF-8", "en_US.UTF-8"])
def test_bytes_that_are_not_utf8_cost_their_line_and_the_exit_status(command, variables, locale):
    strict = {**variables, "LC_ALL": locale, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(
        command, input=b"caf\xe9\n/caf\xe9\nhello\n", env=strict, capture_output=True, timeout=PATIENCE
    )
    refused, unknown = done.stderr.decode().splitlines()
    assert refused.startswith("error: ") and "not valid Unicode" in refused
    assert unknown == "error: there is no command /caf\ufffd; /help lists them"
    assert (done.stdout.decode(), done.returncode) == (f"{CONTENT}\n", 1)


@pytest.mark.parametrize("said", ["", "hello\n"])
def test_ctrl_c_ends_it_on_a_pipe(command, variables, said):
    process = subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    process.stdin.write("/thinking on\n")
    assert process.stdout.readline() == "thinking on\n"
    if said:
        process.stdin.write(said)
        assert process.stdout.readline() == f"{CONTENT}\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    process.stdin.close()
    process.stdout.close()


class Terminal:
    """A child process at a pseudo-terminal, and a person who types."""

    def __init__(self, command: list[str], variables: dict[str, str]):
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, variables)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, pattern: str, again: str = "") -> str:
        """What comes until ``pattern`` does; a person types ``again`` where nothing does for a while."""
        seen, deadline = b"", time.monotonic() + PATIENCE
        while not re.search(pattern, seen.decode(errors="replace")):
            assert time.monotonic() < deadline, seen
            if select.select([self._fd], [], [], SECONDS_TO_TYPE_AGAIN)[0]:
                seen += os.read(self._fd, 4096)
            else:
                self.type(again)
        return seen.decode(errors="replace")

    def ended(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_stops_the_answer_and_not_the_program(command, variables, tmp_path):
    train_tokenizer(tmp_path, tags_are_special=False)
    make_checkpoint(tmp_path, "babbler", max_positions=16 * CONTEXT)  # an answer of a minute and more
    *program, first, last = command  # the last one is loaded first
    terminal = Terminal([*program, first, f"babbler={tmp_path}", last], variables)
    assert "/help" in terminal.read_until(PROMPT)
    terminal.type("hello\n")
    answer = terminal.read_until(r"tokens/s\r\n" + PROMPT)
    assert REASONING in answer and CONTENT in answer

    terminal.type("/model babbler\n")
    terminal.read_until("now babbler\r\n" + PROMPT)
    terminal.type("hello\n")
    terminal.read_until(re.escape(CONTENT) + ".{20}")
    terminal.type("\x03")
    terminal.read_until("stopped\r\n" + PROMPT)
    terminal.type("half a line")
    terminal.read_until("half a line")
    terminal.type("\x03")
    terminal.read_until(PROMPT, again="\x03")  # readline misses one in the instant before it waits for keys
    terminal.type("/model speaker\n")
    terminal.read_until("now speaker\r\n" + PROMPT)
    terminal.type("hello\n")
    assert CONTENT in terminal.read_until(r"tokens/s\r\n" + PROMPT)
    terminal.type("\x04")
    assert terminal.ended() == 0
