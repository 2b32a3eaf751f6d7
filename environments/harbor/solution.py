"""A task's own solution as one shell command, so that it goes the way of every agent."""

import base64
import re
import shlex
from pathlib import Path

from environments.harbor.task import HarborTask

PLAIN = "I know the whole way: one script does what is asked, then I submit."


def solution_script(task: HarborTask) -> str:
    """The text of solve.sh. Raises ``FileNotFoundError`` where the task has no solution."""
    if task.solution is None:
        raise FileNotFoundError(f"{task.folder} has no solution/solve.sh")
    return (task.solution / "solve.sh").read_text(encoding="utf-8")


def solution_command(task: HarborTask) -> str:
    """What does in a shell what solve.sh does: its text, or its call where files lie beside it."""
    script = solution_script(task)
    variables = task.variables(task.config.solution.env)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    beside = sorted(path for path in task.solution.rglob("*") if path.is_file())
    if len(beside) == 1 and "BASH_SOURCE" not in script and not re.search(r"\$\{?0\b", script):
        return exports + script
    written = "".join(
        _write(path, f"/solution/{path.relative_to(task.solution).as_posix()}") for path in beside
    )
    return f"{exports}{written}bash /solution/solve.sh\n"


def solution_steps(task: HarborTask) -> str:
    """The comments of solve.sh, in order: why it does what it does."""
    lines = (line.strip() for line in solution_script(task).splitlines())
    comments = [line.lstrip("# ") for line in lines if line.startswith("#") and not line.startswith("#!")]
    return " ".join(filter(None, comments)) or PLAIN


def solution_length(task: HarborTask) -> int:
    """Lines of solve.sh that do something: how long the way is; 1 where there is no solution."""
    if task.solution is None:
        return 1
    lines = (line.strip() for line in solution_script(task).splitlines())
    return max(1, sum(1 for line in lines if line and not line.startswith("#")))


def _write(path: Path, target: str) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    folder = shlex.quote(str(Path(target).parent))
    return f"mkdir -p {folder} && base64 -d > {shlex.quote(target)} <<'END_OF_FILE'\n{content}\nEND_OF_FILE\n"
