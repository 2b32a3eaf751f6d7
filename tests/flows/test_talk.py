"""``glm5 chat`` and ``glm5 serve``: which checkpoint they find, and that the program takes over."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import artifacts
from tests.waiting import PATIENCE

FIXTURES = Path(__file__).parents[1] / "model"
sys.path += [str(FIXTURES / "chat"), str(FIXTURES / "inference/server")]


@pytest.fixture
def trained(bare):
    """A repository with one finished checkpoint, of stage sft."""
    pytest.importorskip("torch")
    from reciting_model import make_checkpoint
    from small_tokenizer import train_tokenizer

    draft = bare / "artifacts/tiny/.sft.draft"
    draft.mkdir(parents=True)
    train_tokenizer(draft, tags_are_special=False)
    make_checkpoint(draft, "speaker")
    artifacts.publish(draft, bare / "artifacts/tiny/sft", {"stage": "sft", "identity": "0" * 64})
    return bare


def test_without_a_checkpoint_it_says_how_to_get_one(bare, glm5):
    for command in ("chat", "serve"):
        done = glm5(bare, command)
        assert done.returncode == 1 and done.stdout.count("\n") == 1
        assert "glm5 run --recipe tiny" in done.stdout


def test_chat_on_a_pipe_with_the_last_finished_checkpoint(trained, environment):
    from reciting_model import CONTENT

    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "chat", "--no-thinking"], cwd=trained, input="hello\n",
        env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{CONTENT}\n"), done.stderr


def test_a_stage_without_a_checkpoint(trained, glm5):
    done = glm5(trained, "serve", "--stage", "pretrain")
    assert done.returncode == 1 and "'pretrain'" in done.stdout and "sft" in done.stdout


def test_a_checkpoint_to_begin_with_that_is_none(trained, glm5):
    for command in ("chat", "serve"):
        done = glm5(trained, command, "--first", "tiny/nobody")
        assert done.returncode == 1
        assert done.stdout == "error: --first tiny/nobody is not among the checkpoints tiny/sft\n"


def test_serve_passes_options_and_signals_on(trained, environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "serve", "--port", "0"], cwd=trained, stdout=subprocess.PIPE,
        env={**environment, "OMP_NUM_THREADS": "1"}, text=True,
    )  # fmt: skip
    try:
        assert "tiny/sft" in process.stdout.readline()
        assert "chat page: http://127.0.0.1:" in process.stdout.readline()
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert b"model.inference.server" in arguments  # the command itself, not a child of it
        os.kill(process.pid, 2)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()


def test_other_commands_refuse_unknown_options(bare, glm5):
    done = glm5(bare, "status", "--port", "3")
    assert done.returncode == 2 and "--port" in done.stdout
