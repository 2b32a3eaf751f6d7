"""What can be said of a task without running it. These are heuristics over texts: they find what is usually
wrong, not everything that is. Each line says what it looked at.

The lines follow the questions of Harbor's own checks: do instruction and tests speak of the same things, can
the answer be found in the image, is everything pinned and offline, does the solution compute.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from environments.harbor.task import HarborTask


@dataclass(frozen=True)
class Line:
    """One line of the report; ``decisive`` ones reject a task."""

    name: str
    passed: bool
    evidence: str
    decisive: bool = True


NETWORK = re.compile(
    r"\b(curl|wget|git\s+(clone|fetch|pull)|pip3?\s+install|uv\s+(pip|add|sync)|npm\s+(install|i|ci)|apt(-get)?\s+install"
    r"|urllib\.request|requests\.(get|post)|https?://(?!127\.|localhost|example\.))"
)
PIP = re.compile(r"pip3?\s+install\s+([^\n;&|]+)")
PATH = re.compile(r"(?<![\w.:/-])/(?:[\w.-]+/)*[\w-]+(?:\.[\w-]+)+(?![\w/-])")
SAYS = re.compile(r"\b(echo|printf|cat|mkdir|touch|set|cd|exit|true|:|export|tee)\b")
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)\n\s*\2\b", re.DOTALL)
PROGRAM = re.compile(r"\.(py|sh|js|ts|c|cc|cpp|h|rs|go|java|rb|pl|awk|sql|mk|patch|diff)\b|Makefile")
SYSTEM = ("/usr/", "/bin/", "/dev/", "/proc/", "/etc/", "/tests/", "/logs/", "/solution/", "/lib", "/sys/")
MIN_SECRET = 20  # bytes from which an equal file is no accident


def rubric(task: HarborTask) -> list[Line]:
    return [check(task) for check in CHECKS]


def _tests_are_announced(task: HarborTask) -> Line:
    """Every file of the work that the tests name is named in the instruction, or given with the image."""
    known = task.instruction + _given_names(task)
    named = sorted(_paths(_texts(task.tests)))
    unknown = [path for path in named if PurePosixPath(path).name not in known]
    evidence = (
        f"not in the instruction: {', '.join(unknown)}" if unknown else f"{len(named)} files, all named"
    )
    return Line("the instruction names what the tests look at", not unknown, evidence)


def _announced_is_tested(task: HarborTask) -> Line:
    """Every absolute file name of the instruction occurs in tests or collect commands, or is given."""
    known = (
        _texts(task.tests)
        + _given_names(task)
        + " ".join(item.command for item in task.config.verifier.collect)
    )
    named = sorted(_paths(task.instruction))
    unknown = [path for path in named if PurePosixPath(path).name not in known]
    evidence = f"not in the tests: {', '.join(unknown)}" if unknown else f"{len(named)} files, all looked at"
    return Line("the tests look at what the instruction names", not unknown, evidence)


def _not_in_the_image(task: HarborTask) -> Line:
    hidden = {
        path.read_bytes(): path for folder in (task.tests, task.solution) if folder for path in _files(folder)
    }
    found = [
        f"{path.relative_to(task.folder)} is {hidden[content].relative_to(task.folder)}"
        for path in _files(task.environment)
        if len(content := path.read_bytes()) >= MIN_SECRET and content in hidden
    ]
    return Line(
        "tests and solution are not in the image",
        not found,
        "; ".join(found) or "no file of theirs is the same",
    )


def _offline(task: HarborTask) -> Line:
    config = task.config
    modes = {config.environment.network_mode, config.agent.network_mode, config.verifier.network_mode} - {
        None
    }
    if modes != {"no-network"}:
        return Line("no network", False, "task.toml must say network_mode = 'no-network' and nothing else")
    for folder in filter(None, (task.tests, task.solution)):
        if found := NETWORK.search(_texts(folder)):
            return Line("no network", False, f"{folder.name} has {found[0]!r}")
    return Line("no network", True, "closed in task.toml; no download in tests and solution")


def _pinned(task: HarborTask) -> Line:
    dockerfile = (task.environment / "Dockerfile").read_text(encoding="utf-8", errors="replace")
    wanted = [word for match in PIP.finditer(dockerfile.replace("\\\n", " ")) for word in match[1].split()]
    loose = [
        word
        for word in wanted
        if word[0].isalpha() and "==" not in word and not word.endswith((".txt", ".whl"))
    ]
    return Line(
        "pip installs are pinned", not loose, f"without ==: {', '.join(loose)}" if loose else "none is loose"
    )


def _computes(task: HarborTask) -> Line:
    """A script that only says things, and leaves no program, was written by someone who knew the answer."""
    name = "the solution computes its result"
    if task.solution is None:
        return Line(name, False, "there is no solution")
    script = (task.solution / "solve.sh").read_text(encoding="utf-8", errors="replace")
    if PROGRAM.search(script) or any(path.name != "solve.sh" for path in _files(task.solution)):
        return Line(name, True, "it writes or runs a program")
    commands = [line.strip() for line in HEREDOC.sub("<<END", script).splitlines()]
    working = [line for line in commands if line and line[0] != "#" and not SAYS.match(line)]
    working += [line for line in commands if "$(" in line or "`" in line or " | " in line]
    return Line(name, bool(working), working[0][:80] if working else "it only prints what it knows")


def _clean_verifier(task: HarborTask) -> Line:
    separate, declared = task.config.verifier.separate, bool(task.config.artifacts)
    evidence = "a sandbox of its own, which receives the artifacts"
    if not separate:
        evidence = "the tests run where the agent was root: set verifier.environment_mode = 'separate'"
    elif not declared:
        evidence = "separate, but artifacts is empty: Harbor would carry nothing of the work"
    return Line("the tests run in a clean sandbox", separate and declared, evidence)


def _limits_are_stated(task: HarborTask) -> Line:
    config = task.config
    stated = {
        "agent.timeout_sec": config.agent.timeout_sec,
        "verifier.timeout_sec": "timeout_sec" in config.verifier.model_fields_set,
        "environment.cpus": config.environment.cpus,
        "environment.memory_mb": config.environment.memory_mb,
    }
    missing = [name for name, value in stated.items() if not value]
    evidence = f"task.toml does not say {', '.join(missing)}" if missing else "time, processors and memory"
    return Line("limits are stated", not missing, evidence)


CHECKS: tuple[Callable[[HarborTask], Line], ...] = (
    _tests_are_announced, _announced_is_tested, _not_in_the_image, _offline, _pinned, _computes,
    _clean_verifier, _limits_are_stated,
)  # fmt: skip


def _paths(text: str) -> set[str]:
    """Absolute names of files in a text, those of the system and of the verifier left out."""
    return {
        path for path in PATH.findall(text) if not path.startswith(SYSTEM) and not path.startswith("/tmp/")
    }


def _given_names(task: HarborTask) -> str:
    """The names of all files of the image's context, and the texts that make more of them."""
    names = " ".join(path.name for path in _files(task.environment))
    scripts = [path for path in _files(task.environment) if path.suffix == ".sh" or path.name == "Dockerfile"]
    return names + " ".join(_text(path) for path in scripts)


def _texts(folder: Path) -> str:
    return "\n".join(map(_text, _files(folder)))


def _text(path: Path) -> str:
    return path.read_bytes()[:1_000_000].decode("utf-8", errors="ignore")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
