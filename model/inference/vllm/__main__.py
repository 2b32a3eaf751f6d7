"""Serve a checkpoint with vLLM, on this machine alone: ``python -m model.inference.vllm NAME=FOLDER``.

Options that are not named in --help go to vLLM's own server.
"""

import argparse
import os
import sys
from pathlib import Path

from model.inference.vllm.process import PYTHON, ROOT


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="model.inference.vllm", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", metavar="NAME=FOLDER")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--python", type=Path, default=PYTHON, help="of the environment that holds vLLM")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cache-gib", type=int, default=1, help="memory for cached tokens")
    options, others = parser.parse_known_args(arguments)
    if not options.python.exists():
        print(f"error: {options.python} is not there: run `make vllm`, or give --python", file=sys.stderr)
        return 1
    command = [
        str(options.python), "-m", "model.inference.vllm.serve", options.checkpoint, "--port",
        str(options.port), *others,
    ]  # fmt: skip
    os.execve(command[0], command, os.environ | environment(options.threads, options.cache_gib))


def environment(threads: int, cache_gib: int) -> dict[str, str]:
    """Variables for vLLM's process and those that it starts."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "VLLM_HOST_IP": "127.0.0.1",  # its processes speak to one another
        "VLLM_CPU_KVCACHE_SPACE": str(cache_gib),
        # Bound to cores, threads made it three times slower on two of them.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
    }


if __name__ == "__main__":
    sys.exit(main())
