"""A task before it is known to be sound: a drafter proposes it, the implementer writes its Harbor folder.

Drafters are generators of candidates (``terminal/``, ``swe/``). ``data_pipelines.agent_tasks`` implements,
validates and refines each, keeps the sound ones and counts the others by reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class Rejected(Exception):
    """Why a candidate cannot become a task: a few words, the same for the same kind of reason."""


@dataclass(frozen=True)
class Candidate:
    """``write`` makes the whole Harbor folder (task.toml, instruction.md, environment/, solution/, tests/) in
    an empty folder, and raises ``Rejected`` where it finds that it cannot.
    """

    name: str  # unique, letters, digits and hyphens
    kind: str  # "terminal" or "swe"
    family: str
    heldout: bool  # whole families or projects are held out
    provenance: str  # where it came from: generator and seed, or project, versions and patch
    licence: str
    write: Callable[[Path], None]
    draft: dict = field(default_factory=dict)  # what the drafter wrote, kept for the record of rejected ones
    # Another try by the drafter, told why this one is rejected; None where it would be the same again.
    redraft: "Callable[[str], Candidate] | None" = None
