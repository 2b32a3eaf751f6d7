"""The Test Anything Protocol with subtests: ids are ``group > test``, every block is held to its plan."""

import re
from dataclasses import dataclass

from environments.swe.grading import FAILED, PASSED, SKIPPED, XFAIL, LogRejected, merge
from environments.swe.parsers.colour import without_colour

_RESULT = re.compile(r"(not )?ok\b ?(\d+)?(?: - | |$)?(.*?)(?:\s*# ?(skip|todo)\b.*)?", re.I)
_PLAN = re.compile(r"1\.\.(\d+)(?:\s*#.*)?")
_SUBTEST = re.compile(r"# Subtest: (.*)")


@dataclass
class _Block:
    results: int = 0
    plan: int | None = None


def parse_tap(log: str) -> dict[str, str]:
    results: dict[str, str] = {}
    blocks: dict[int, _Block] = {}
    names: dict[int, str] = {}  # of the subtest announced at an indentation
    in_yaml = False
    for line in without_colour(log).splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if in_yaml or text == "---":
            in_yaml = text != "..."
        elif match := _SUBTEST.fullmatch(text):
            names[depth] = match[1]
        elif match := _PLAN.fullmatch(text):
            _close(blocks, above=depth)
            blocks.setdefault(depth, _Block()).plan = int(match[1])
        elif match := _RESULT.fullmatch(text):
            _close(blocks, above=depth)
            block = blocks.setdefault(depth, _Block())
            block.results += 1
            if match[2] and int(match[2]) != block.results:
                raise LogRejected(f"result {match[2]} stands where {block.results} is due")
            parents = [names[indent] for indent in sorted(names) if indent < depth]
            merge(results, " > ".join([*parents, match[3] or str(block.results)]), _status(match))
        elif text.startswith("Bail out!"):
            raise LogRejected("the run bailed out")
    if 0 not in blocks:
        raise LogRejected("the log has neither a plan nor a result")
    _close(blocks, above=-1)
    return results


def _close(blocks: dict[int, _Block], above: int) -> None:
    for depth in [depth for depth in blocks if depth > above]:
        block = blocks.pop(depth)
        if block.plan != block.results:
            planned = "without a plan" if block.plan is None else f"for a plan of {block.plan}"
            raise LogRejected(f"there are {block.results} results {planned}")


def _status(match: re.Match) -> str:
    directive = (match[4] or "").lower()
    if directive == "skip":
        return SKIPPED
    if match[1]:
        return XFAIL if directive == "todo" else FAILED
    return PASSED
