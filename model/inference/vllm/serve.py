"""vLLM's server on one checkpoint folder. Runs in vLLM's environment, started by ``model.inference.vllm``."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from model.inference.server.loading import named_folders
from model.inference.vllm.folder import Servable, check_folder, write_view
from model.inference.vllm.verbs import ADDRESS, AS_IT_IS, SERVED

HOST = "127.0.0.1"


def main() -> int:
    parser = argparse.ArgumentParser(prog="model.inference.vllm")
    parser.add_argument("checkpoint", metavar="NAME=FOLDER")
    parser.add_argument("--port", type=int, default=8001)
    options, others = parser.parse_known_args()
    try:
        [(name, folder)] = named_folders([options.checkpoint]).items()
        with tempfile.TemporaryDirectory(prefix="glm5-vllm-") as view:
            _serve(name, folder.absolute(), options.port, Path(view), others)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # a signal to end, before the server was there
        return 130
    return 0


def _serve(name: str, folder: Path, port: int, view: Path, others: list[str]) -> None:
    cuda = torch.cuda.is_available()
    servable = None if cuda else check_folder(folder)
    if servable:
        write_view(folder, view)
    os.environ |= {
        SERVED: f"{name}={folder}", AS_IT_IS: str(int(cuda)), ADDRESS: f"http://{HOST}:{port}",
    }  # fmt: skip
    from vllm.entrypoints.launchers.api_server.entry import main as vllm_main  # not in our environment

    sys.argv = ["vllm", *arguments(name, str(view if servable else folder), port, servable, others)]
    vllm_main()


def arguments(name: str, folder: str, port: int, servable: Servable | None, others: list[str]) -> list[str]:
    """Of vLLM's server. ``servable``: of the CPU build; None on CUDA. Of two equal options the last counts:
    ``others`` may change all but the address.
    """
    common = [
        "--model", folder, "--served-model-name", name,
        "--worker-extension-cls", "model.inference.vllm.worker.WholeReload",
        "--middleware", "model.inference.vllm.verbs.Verbs",
        "--enable-scale-out",  # token ids in and out, with the version of each: /inference/v1/generate
        "--enable-auto-tool-choice", "--tool-call-parser", "glm47", "--reasoning-parser", "glm47",
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    return [*common, *(_of_cpu(servable) if servable else []), *others, "--host", HOST, "--port", str(port)]


def _of_cpu(servable: Servable) -> list[str]:
    return [
        "--max-model-len", str(servable.context),
        "--dtype", servable.dtype,  # "auto" would round float32 down
        # Nothing is compiled: the tiny models gain nothing by it and starts take a minute longer.
        "--enforce-eager",
        # One of the CPU's own operations makes the log-probs of latent attention wrong by 0.002 to 0.04.
        "--compilation-config", json.dumps({"custom_ops": ["none"]}),
        # On processors with AMX another kernel would be taken, with which nothing was compared.
        "--attention-backend", "CPU_MLA",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
