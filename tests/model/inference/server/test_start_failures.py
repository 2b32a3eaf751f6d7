"""A server that cannot start says why in one sentence and exits with 1; options out of range with 2."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from model.inference.server.__main__ import main
from model.inference.server.loading import open_checkpoint
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[4]


def serve(folder: Path, *options: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "model.inference.server", f"x={folder}", *(options or ("--port", "0"))],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


def sentence_of(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 1 and not done.stdout, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture
def refused(capfd):
    """``refused(folder, "--port", "0")``: the sentence with which the program ends, run in this process."""

    def call(folder: Path, *options: str) -> str:
        status = main([f"x={folder}", *(options or ("--port", "0"))])
        said = capfd.readouterr()
        return sentence_of(subprocess.CompletedProcess([], status, said.out, said.err))

    return call


@pytest.fixture
def copied(folders, tmp_path) -> Path:
    return Path(shutil.copytree(folders["speaker"], tmp_path / "copied"))


def test_weights_of_another_shape(copied):
    tensors = load_file(copied / "model.safetensors")
    rows, width = tensors["lm_head.weight"].shape
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].contiguous()
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    text = sentence_of(serve(copied))
    assert f"lm_head.weight has shape ({rows - 1}, {width})" in text and f"({rows}, {width})" in text


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_file_that_is_cut(copied, refused, name):
    (copied / name).write_bytes((copied / name).read_bytes()[:-100])
    assert str(copied / name) in refused(copied)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_file_that_is_missing(copied, refused, name):
    (copied / name).unlink()
    assert str(copied / name) in refused(copied)


def test_another_models_tokenizer(copied):
    path = copied / "tokenizer.json"
    found = json.loads(path.read_text())
    last = max(token["id"] for token in found["added_tokens"])
    found["added_tokens"] += [
        {**found["added_tokens"][0], "id": last + n, "content": f"<{n}>"} for n in range(1, 500)
    ]
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match="it is another model's tokenizer"):
        asyncio.run(open_checkpoint("x", copied))


def test_a_port_that_is_taken(folders, refused):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        text = refused(folders["speaker"], "--port", str(port))
    assert f"cannot listen on port {port} of 127.0.0.1 (address already in use)" in text and "--port" in text


def test_a_port_that_is_none(folders, capfd):
    done = serve(folders["speaker"], "--port", "99999")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert no_port("99999") in done.stderr
    for port in ("65536", "-1", "eighty"):
        with pytest.raises(SystemExit) as ended:
            main([f"x={folders['speaker']}", "--port", port])
        assert ended.value.code == 2 and no_port(port) in capfd.readouterr().err


def no_port(text: str) -> str:
    return f"argument --port: {text!r} is not a whole number from 0 to 65535"


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("gpu", "--device gpu is no device of PyTorch's; say cpu"),
        ("meta", "--device meta cannot be used here ("),
        ("cuda:999", "--device cuda:999 cannot be used here ("),
    ],
)
def test_a_device_that_is_none(folders, refused, device, sentence):
    assert sentence in refused(folders["speaker"], "--device", device)


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("--max-tokens", "-5", "max_tokens"),
        ("--max-sequences", "0", "sequences"),
        ("--drain-seconds", "nan", "drain_seconds"),
        ("--max-body-bytes", "0", "body_bytes"),
        ("--stall-seconds", "inf", "stall_seconds"),
    ],
)
def test_a_limit_that_is_none(folders, refused, option, value, name):
    said = refused(folders["speaker"], option, value)
    assert said == f"error: the server's limit {name} is {value}: give a number above 0\n"


def test_a_first_checkpoint_that_is_none(folders, refused):
    text = refused(folders["speaker"], "--first", "y")
    assert text == "error: --first y is not among the checkpoints x\n"


def test_ctrl_c_ends_a_server_and_frees_its_port(start_server):
    served = start_server()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(PATIENCE) == 0
    assert not any("Traceback" in line for line in served.lines), served.lines
    port = int(served.url.rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_sigterm_ends_a_server(start_server):
    served = start_server()
    before = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(PATIENCE) == -signal.SIGTERM
    assert time.monotonic() - before < PATIENCE
    assert not any("Traceback" in line for line in served.lines), served.lines
