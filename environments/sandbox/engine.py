"""Calls to a Docker engine: in threads of their own, its failures as one sentence."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import docker
import docker.errors
import requests

from environments.sandbox.interface import SandboxError

THREADS = 512  # commands that run at once: each waits in a thread for its output


class Engine:
    """``api`` is the SDK's low-level client; it may be used from several threads."""

    def __init__(self, api: docker.APIClient) -> None:
        self.api = api
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="docker")

    async def call(self, function: Callable, *arguments: Any, **named: Any) -> Any:
        """The result of a blocking function. Raises ``SandboxError`` for whatever the engine could not do."""
        return await asyncio.wrap_future(self.submit(function, *arguments, **named))

    def submit(self, function: Callable, *arguments: Any, **named: Any) -> concurrent.futures.Future:
        return self._threads.submit(self._call, function, arguments, named)

    def _call(self, function: Callable, arguments: tuple, named: dict) -> Any:
        try:
            return function(*arguments, **named)
        except docker.errors.APIError as error:
            raise SandboxError(f"the Docker engine failed: {one_line(error.explanation or error)}") from error
        except (
            docker.errors.DockerException,
            requests.RequestException,
            ConnectionError,
            TimeoutError,
        ) as error:
            raise SandboxError(
                f"the Docker engine at {self.api.base_url} does not answer any more: {one_line(error)}"
            ) from error


def one_line(text: object, limit: int = 300) -> str:
    """A message as part of a sentence."""
    words = " ".join(str(text).split())
    return words if len(words) <= limit else words[: limit - 3] + "..."
