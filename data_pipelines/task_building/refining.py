"""Try candidates as a validator does, send the reason of a rejection back to the drafter, keep or drop: the
refine step of paper section 4.2.2.
"""

import asyncio
import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.implementing import content_digest, implement
from environments.harbor.task import load_task
from environments.harbor.validation import validate
from environments.sandbox.interface import Backend, SandboxError
from pipeline.errors import UserError
from pipeline.files import write_whole

TRIES = 2  # of a validation in which the sandbox itself fails
BROKEN = "the sandbox failed"
EVIDENCE = 1500  # characters of what the tests printed


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate so far. ``reason`` says why it is rejected, in the same words for the same
    kind of fault; ``detail`` what was seen this time.
    """

    candidate: Candidate
    folder: Path
    reason: str = ""
    detail: str = ""
    digest: str = ""  # of the whole folder, as environments.harbor has it
    content: str = ""  # of what makes up the task
    instruction: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    repaired: tuple[str, ...] = ()
    round: int = 1  # which draft of the candidate it is

    def rejected(self, reason: str, detail: str = "") -> "Outcome":
        return dataclasses.replace(self, reason=reason, detail=detail)


class Refiner:
    """Writes and validates folders below ``scratch``, and remembers there the verdict on each content."""

    def __init__(self, backend: Backend, scratch: Path, repeats: int, seconds: float, rounds: int) -> None:
        self.backend, self.repeats, self.seconds, self.rounds = backend, repeats, seconds, rounds
        self._folders, self._verdicts = scratch / "tasks", scratch / "verdicts"
        for folder in (self._folders, self._verdicts):
            folder.mkdir(parents=True, exist_ok=True)

    def prepare(self, candidate: Candidate, round: int = 1) -> Outcome:
        """Write the folder and read it as a task. Blocking."""
        folder = self._folders / candidate.name
        outcome = Outcome(candidate, folder, round=round)
        try:
            repaired = implement(candidate, folder)
            task = load_task(folder)
        except Rejected as error:
            return outcome.rejected(str(error))
        except UserError as error:
            return outcome.rejected("the folder is no task", str(error).replace(f"{folder}", candidate.name))
        return dataclasses.replace(
            outcome, digest=task.digest, content=content_digest(folder), instruction=task.instruction,
            repaired=tuple(repaired),
        )  # fmt: skip

    async def refine(self, outcome: Outcome) -> Outcome:
        """Validate what ``prepare`` wrote. A candidate that can be drafted again is, told the reason, at most
        ``rounds`` times.
        """
        outcome = await self._judge(outcome)
        while outcome.reason and outcome.reason != BROKEN and outcome.round <= self.rounds:
            if outcome.candidate.redraft is None:
                break
            again = outcome.candidate.redraft(f"{outcome.reason}: {outcome.detail}")
            outcome = await self._judge(await asyncio.to_thread(self.prepare, again, outcome.round + 1))
        return outcome

    async def _judge(self, outcome: Outcome) -> Outcome:
        if outcome.reason:
            return outcome
        try:
            report = await self._report(outcome)
        except SandboxError as error:
            return outcome.rejected(BROKEN, str(error))
        reason, _, detail = report["reason"].partition(": ")
        return dataclasses.replace(
            outcome, reason=reason, detail=f"{detail} {_printed(reason, report)}".strip(), report=report
        )

    async def _report(self, outcome: Outcome) -> dict[str, Any]:
        """The report on this content, of this run or of an earlier one that was killed."""
        path = self._verdicts / f"{outcome.digest}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        report = await self._validate(outcome.folder)
        write_whole(path, json.dumps(report, ensure_ascii=False, indent=1))
        return report

    async def _validate(self, folder: Path) -> dict[str, Any]:
        tries = TRIES
        while True:
            tries -= 1
            try:
                async with asyncio.timeout(self.seconds):
                    return json.loads((await validate(folder, self.backend, self.repeats)).to_json())
            except TimeoutError:
                reason = f"it takes too long: more than {self.seconds:g} s for all runs"
                return {"sound": False, "reason": reason, "lines": [], "runs": []}
            except SandboxError:
                if not tries:
                    raise


def _printed(reason: str, report: dict[str, Any]) -> str:
    """What the tests said of the agent that the reason speaks of: a drafter needs to see it."""
    agent = {"the solution scores 1": "oracle", "doing nothing scores 0": "nop"}.get(reason)
    return next((run["output"][-EVIDENCE:] for run in report["runs"] if run["agent"] == agent), "")


def index_row(outcome: Outcome) -> dict[str, Any]:
    """The line of tasks.jsonl for a task that is kept."""
    candidate = outcome.candidate
    text = (outcome.folder / "task.toml").read_text(encoding="utf-8")
    return {
        "name": candidate.name, "kind": candidate.kind, "family": candidate.family,
        "heldout": candidate.heldout, "digest": outcome.digest, "content": outcome.content,
        "difficulty": tomllib.loads(text).get("metadata", {}).get("difficulty", ""),
        "provenance": candidate.provenance, "licence": candidate.licence,
        "folder": f"tasks/{candidate.name}", "drafts": outcome.round, "repaired": list(outcome.repaired),
    }  # fmt: skip


def report_of(outcome: Outcome) -> dict[str, Any]:
    """The validation report without what differs from run to run: times and printed text."""
    kept = ("agent", "reward", "outcome", "reason")
    runs = [{key: run[key] for key in kept} for run in outcome.report["runs"]]
    return {"name": outcome.candidate.name, "lines": outcome.report["lines"], "runs": runs}
