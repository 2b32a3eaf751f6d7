"""Serve checkpoints over HTTP: ``python -m model.inference.server NAME=FOLDER ... [--port 8000]``."""

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from functools import partial
from typing import get_args

import uvicorn

from model.inference.decode import DecodeMode, decode_mode
from model.inference.server.app import make_app
from model.inference.server.connections import guarded_protocol
from model.inference.server.guard import LOOPBACK
from model.inference.server.limits import Limits
from model.inference.server.loading import first_of, named_folders, open_checkpoint, usable_device

KEY_VARIABLE = "GLM5_API_KEY"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _serve(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    limits = Limits()
    parser = argparse.ArgumentParser(prog="model.inference.server", description=__doc__)
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=FOLDER", help="one at a time is loaded")
    parser.add_argument("--first", help="the one to load first (default: the last)")
    parser.add_argument("--host", default="127.0.0.1", help="elsewhere than here only with an API key")
    parser.add_argument("--port", type=_port, default=8000, help="0 for any that is free (default: 8000)")
    parser.add_argument("--api-key", help=f"that clients must send (default: the variable {KEY_VARIABLE})")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--draft-steps", type=int, default=0, help="of speculative decoding with the MTP block"
    )
    parser.add_argument("--decode", choices=get_args(DecodeMode),
                        help="how decode passes run (default: graphs on CUDA, else plain); native is the "
                        "quickest on a CPU and needs a C++ compiler")  # fmt: skip
    parser.add_argument("--record-experts", action="store_true",
                        help="keep the experts of every token, for routing replay in a trainer")  # fmt: skip
    parser.add_argument("--max-body-bytes", type=int, default=limits.body_bytes)
    parser.add_argument("--max-prompt-tokens", type=int, help="default: what the model's context holds")
    parser.add_argument("--max-tokens", type=int, help="sampled for one sequence; default: what fits")
    parser.add_argument("--max-sequences", type=int, default=limits.sequences, help="waiting and running")
    parser.add_argument("--receive-seconds", type=float, default=limits.receive_seconds,
                        help="for a request to arrive")  # fmt: skip
    parser.add_argument("--stall-seconds", type=float, default=limits.stall_seconds,
                        help="until a client that does not read is dropped")  # fmt: skip
    parser.add_argument("--drain-seconds", type=float, default=limits.drain_seconds,
                        help="for running requests after SIGTERM")  # fmt: skip
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 65535")
    return int(text)


def _serve(options: argparse.Namespace) -> int:
    folders = named_folders(options.checkpoints)
    first = first_of(folders, options.first)
    key = options.api_key or os.environ.get(KEY_VARIABLE) or None
    loopback = options.host in LOOPBACK
    if not loopback and key is None:
        raise ValueError(
            f"--host {options.host} is open to other machines: give --api-key or set {KEY_VARIABLE}, "
            "or leave --host out"
        )
    decode_mode(options.decode, usable_device(options.device))
    limits = Limits(
        body_bytes=options.max_body_bytes,
        prompt_tokens=options.max_prompt_tokens,
        max_tokens=options.max_tokens,
        sequences=options.max_sequences,
        receive_seconds=options.receive_seconds,
        stall_seconds=options.stall_seconds,
        drain_seconds=options.drain_seconds,
    )
    opener = partial(
        open_checkpoint,
        device=options.device,
        max_waiting=limits.sequences,
        draft_steps=options.draft_steps,
        decode=options.decode,
        record_experts=options.record_experts,
    )
    app = make_app(folders, first, opener, limits=limits, api_key=key, loopback=loopback)
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        http=guarded_protocol(limits),
        ws="none",
        lifespan="off",  # AnnouncingServer runs it
        log_level="warning",
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=limits.drain_seconds,
    )
    server = AnnouncingServer(config, f"{first}, with {len(folders)} checkpoints to choose from")
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0


class AnnouncingServer(uvicorn.Server):
    """Says where the page is, once it is there.

    It takes its address and loads the checkpoint itself: of what fails there uvicorn would log a traceback,
    here it is an exception of ``run``.
    """

    def __init__(self, config: uvicorn.Config, text: str):
        super().__init__(config)
        self._text = text
        self._life = config.app.router.lifespan_context(config.app)

    async def startup(self, sockets=None) -> None:
        sockets = await _bound_sockets(self.config.host, self.config.port)
        await self._life.__aenter__()
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"serving {self._text}", flush=True)
        print(
            f"chat page: http://{shown}:{port}/   API: http://{shown}:{port}/v1   (Ctrl-C ends)", flush=True
        )

    async def shutdown(self, sockets=None) -> None:
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._life.__aexit__(None, None, None)


async def _bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of the host, bound and not yet listening: nobody connects before the model is
    there. Raises ``ValueError`` with one sentence.
    """
    loop = asyncio.get_running_loop()
    try:
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        reason = (error.strerror or str(error)).rpartition(": ")[2]
        raise ValueError(
            f"cannot listen on port {port} of {host} ({reason}): choose another with --port, or end the "
            "program that has it"
        ) from error
    sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in bound.sockets]
    bound.close()
    return sockets


if __name__ == "__main__":
    sys.exit(main())
