"""The real Harbor on this project's sandboxes, without Docker:

    harbor run -p TASKS -a oracle -e environments.adapters.harbor_environment:SandboxEnvironment -o JOBS -y

This module is imported by Harbor's own Python 3.12 (`make harbor`), never by the pipeline.
Set ``LITELLM_LOCAL_MODEL_COST_MAP=True``, or Harbor looks for a price list on the network.
"""

import shutil
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from environments.harbor.config import Artifact
from environments.harbor.work import WorkLost, taken
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Backend, Limits, Sandbox

LOGS = ("/logs/agent", "/logs/user-agent", "/logs/verifier", "/logs/artifacts")
MAX_SECONDS = 3600.0  # of a command for which Harbor gives no time


class SandboxEnvironment(BaseEnvironment):
    """One sandbox per trial. Commands run as root; standard error comes with standard output."""

    _sandbox: Sandbox | None = None

    @staticmethod
    def type() -> str:
        return "glm5-sandbox"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(f"{self.environment_dir} has no Dockerfile")

    async def start(self, force_build: bool) -> None:
        backend: Backend = open_backend()
        machine, default = self.task_env_config, Limits()
        limits = Limits(
            memory_mb=machine.memory_mb or default.memory_mb,
            cpus=float(machine.cpus or default.cpus),
            disk_mb=machine.storage_mb or default.disk_mb,
        )
        self._image = await backend.build(self.environment_dir)
        self._sandbox = await backend.start(self._image, limits)
        await self.exec(f"mkdir -p {' '.join(LOGS)} && chmod 777 {' '.join(LOGS)}", cwd="/")

    async def stop(self, delete: bool) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        result = await self._open.run(
            command,
            seconds=float(timeout_sec or MAX_SECONDS),
            cwd=cwd or self.task_env_config.workdir,
            environment=self._merge_env(env) or {},
        )
        if result.timed_out:
            raise TimeoutError(f"the command ran longer than {timeout_sec} s")
        return ExecResult(stdout=result.output, stderr="", return_code=result.returncode)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        await self._open.write(target_path, source.read_bytes(), source.stat().st_mode & 0o777)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Harbor adds to a folder, so each file is written by itself."""
        source = Path(source_dir)
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            await self.upload_file(path, str(PurePosixPath(target_dir) / path.relative_to(source).as_posix()))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(await self._open.read(source_path, limit=2**28))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        try:
            async with taken(self._open, [Artifact(source=source_dir)]) as [folder]:
                if folder.content is None or not folder.content.is_dir():
                    raise FileNotFoundError(f"{source_dir} is no folder of the sandbox")
                shutil.copytree(folder.content, Path(target_dir), symlinks=True, dirs_exist_ok=True)
        except WorkLost as error:
            raise RuntimeError(str(error)) from error

    @property
    def _open(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("the environment is not started")
        return self._sandbox
