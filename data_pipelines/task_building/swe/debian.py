"""Tasks from the patches of Debian source packages: each that changes code and tests is a fix of its own."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.swe import sdists
from data_pipelines.task_building.swe.apt_sources import AptSources, SourcePackage
from data_pipelines.task_building.swe.instruction import DEBIAN
from data_pipelines.task_building.swe.pair import Pair, name_of
from data_pipelines.task_building.swe.patch_header import Header, read_header
from data_pipelines.task_building.swe.patch_series import Step, steps
from data_pipelines.task_building.swe.project import Project, Release, code_files, release_tree
from data_pipelines.task_building.swe.running import Runner, owned_archive
from data_pipelines.task_building.swe.whole import Change, of_change

# By project; checksums as the .dsc files of bookworm list them.
PACKAGES: dict[str, tuple[SourcePackage, ...]] = {
    "Jinja2": (
        SourcePackage(
            "jinja2",
            "3.1.2-1+deb12u3",
            "acba69d6899482c9ac240143635a51239c564087512706d928a0a5b7503a3138",
            Release("3.1.2", "31351a702a408a9e7595a8fc6150fc3f43bb6bf7e319770cbc0db9df9437e852"),
        ),
    ),
    "sqlparse": (
        SourcePackage(
            "sqlparse",
            "0.4.2-1+deb12u1",
            "0412d78b6b6672db557f749ed33f139bcbe7076cbf42fa0cc7d1f2fa9cc7da2b",
            Release("0.4.2", "0c00730c74263a94e5a9919ade150dfc3b19c574389985446148402998287dae"),
        ),
    ),
    "simpleeval": (
        SourcePackage(
            "simpleeval",
            "0.9.12-1+deb12u1",
            "578ebc5f01908966255764cefa72f246a48e768b276ef46b25ba88fa3da8425b",
            Release("0.9.12", "3e0be507486d4e21cf9d08847c7e57dd61a1603950399985f7c5a0be7fd33e36"),
        ),
    ),
    "markdown": (
        SourcePackage(
            "python-markdown",
            "3.4.1-2+deb12u1",
            "564c1606ee84bafe635393f8298456576629a2373f7342877d743edb4517e17d",
            Release("3.4.1", "3b809086bb6efad416156e00a0da66fe47618a5d6918dd688f53f40c8e4cfeff"),
        ),
    ),
}


async def of_package(
    project: Project,
    package: SourcePackage,
    runner: Runner,
    apt: AptSources,
    scratch: Path,
    note: Callable[[str], None],
) -> AsyncIterator[Candidate]:
    """The candidates of a source package, in the order of its series. ``note`` is told why a patch is none.

    Raises ``Rejected`` where the package is not to be had or a patch does not apply.
    """
    found = await asyncio.to_thread(_steps, project, package, apt, scratch)
    for number, step in enumerate(found, start=1):
        if isinstance(step, Rejected):
            raise step
        header = read_header(step.text)
        if reason := _unfit(project, step, header):
            note(reason)
            continue
        try:
            candidate = await _of_step(project, package, number, step, header, runner)
        except Rejected as reason:
            note(str(reason))
        else:
            yield candidate


def _steps(project: Project, package: SourcePackage, apt: AptSources, scratch: Path) -> list[Step | Rejected]:
    """The steps of the series, and at their end, where one does not apply, why."""
    archive = apt.fetch(package, scratch / "downloads")
    label = re.sub(r"[^\w.-]", "-", f"{project.name}-{package.version}-{package.sha256[:12]}")
    debian = scratch / "releases" / f"{label}-debian"
    if not debian.is_dir():
        debian.parent.mkdir(parents=True, exist_ok=True)
        sdists.unpack(archive, debian)
    upstream = release_tree(project, package.upstream, scratch)
    found: list[Step | Rejected] = []
    try:
        found.extend(steps(upstream, debian / "patches", scratch / "releases" / label))
    except Rejected as reason:
        found.append(reason)
    return found


def _unfit(project: Project, step: Step, header: Header) -> str | None:
    if code_files(project, step.before) == code_files(project, step.after):
        return "a Debian patch changes no code"
    if owned_archive(project, step.before) == owned_archive(project, step.after):
        return "a Debian patch changes no test"
    return None if header.title else "a Debian patch does not say what it is for"


async def _of_step(
    project: Project, package: SourcePackage, number: int, step: Step, header: Header, runner: Runner
) -> Candidate:
    release = package.upstream
    origin = f"patch {step.name} of Debian's {package.name} {package.version}"
    source = "; ".join([f"{project.name} {release.version}", origin, *header.links])
    tests = owned_archive(project, step.after)
    pair = Pair(project, release, release, step.before, step.after, tests, source)
    values = {"version": release.version, "title": header.title, "issue": header.body or header.title}
    change = Change(pair, "debian", name_of(pair, "debian", str(number)), DEBIAN, values)
    fixed = await runner.run(step.after, tests)
    if not fixed.stable:
        raise Rejected("no test of the patched project runs twice alike")
    return await of_change(change, fixed, runner, patch=step.name, package=package.version)
