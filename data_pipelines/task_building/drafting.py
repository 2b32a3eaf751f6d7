"""Who drafts terminal tasks: the scripted families, or any model behind the OpenAI interface.

A model is shown the task of a scripted family as a seed and asked for another one (paper section 4.2.2: seed
tasks, drafts by a model); what a validator finds wrong goes back to it. Its answers are kept in the stage's
scratch, so a killed build does not ask again.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from data_pipelines.task_building.candidate import Candidate, Rejected
from data_pipelines.task_building.terminal import catalog
from data_pipelines.task_building.terminal.draft import DIFFICULTIES, WORKDIR, TerminalDraft
from pipeline.errors import UserError
from pipeline.files import write_whole
from pipeline.openai import BUSY, headers, told
from pipeline.recipe.data import Drafter

TRIES = 4  # of one request, while the server is away or busy
PAUSE = 1.0  # seconds before the second try, doubled from try to try
SEEDS_APART = 10_000_000  # between two data seeds

SYSTEM = f"""\
You write tasks for agents that work in a terminal. Answer with one JSON object and nothing else. Its keys:

title         a few words
instruction   what a person would ask for: every path, format, order and special case that the tests look at
files         an object: texts of files by path below {WORKDIR}; the agent finds them there
setup         shell commands that prepare {WORKDIR} after the files are there; may be empty
solution      bash commands that solve the task in {WORKDIR} step by step, with comments; they compute the
              result and never write down an answer that was worked out before
tests         a Python 3.11 module of functions test_... with assert statements that look at what was
              delivered in {WORKDIR}, by absolute paths. Standard library alone. They fail if nothing is done
difficulty    one of {", ".join(DIFFICULTIES)}

The machine is a Debian with bash, the usual small tools and Python 3.11, without network. Everything must
give the same result every time.
"""
ASK = """\
Here is a task as an example of the kind "{family}" (category {category}):

{example}

Write another task of this kind that needs different work, with other names and data.
"""
AGAIN = """\
That task is rejected. The reason: {reason}

Write the whole JSON object again, repaired.
"""


def scripted_candidates(family: str, data_seed: int) -> Iterator[Candidate]:
    """The candidates of a family, one after the other without end."""
    seed = data_seed * SEEDS_APART
    while True:
        yield catalog.scripted(family, seed)
        seed += 1


class ModelDrafter:
    """Candidates drafted by a model: ``POST <base_url>/chat/completions``."""

    def __init__(self, settings: Drafter, scratch: Path, pause: float = PAUSE) -> None:
        self.settings, self.folder, self.pause = settings, scratch / "drafts", pause
        self.folder.mkdir(parents=True, exist_ok=True)
        address = settings.base_url.rstrip("/") + "/"
        self._client = httpx.Client(base_url=address, timeout=settings.seconds, headers=headers())

    def candidates(self, family: str, data_seed: int) -> Iterator[Candidate]:
        """Candidates of a family without end, each from another seed task; no held-out family is shown."""
        kind = catalog.find(family)
        if kind.heldout:
            raise UserError(f"agent_tasks.families: {family} is kept for evaluation, a model may not see it")
        seed = data_seed * SEEDS_APART
        while True:
            seed_task = catalog.draw(family, seed)
            shown = {"title": seed_task.title, "instruction": seed_task.instruction, "tests": seed_task.tests}
            example = json.dumps(shown, ensure_ascii=False)
            text = ASK.format(family=family, category=kind.category, example=example)
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
            yield self._candidate(family, f"{family}-drafted-{seed}", messages, 1)
            seed += 1

    def close(self) -> None:
        self._client.close()

    def _candidate(self, family: str, name: str, messages: list[dict], number: int) -> Candidate:
        """The candidate of a dialogue; the model is asked when its folder is written."""
        draft: dict = {"model": self.settings.model, "round": number}
        seed_task = f"{catalog.GENERATOR}, family {family}"
        provenance = f"drafted by {self.settings.model} from a seed task of {seed_task}"

        def write(folder: Path) -> None:
            draft["answer"] = self._answer(f"{name}-{number}", messages)
            content = TerminalDraft.from_json(draft["answer"])
            catalog.write_draft(content, folder, family, name, provenance, self.settings.licence)

        def redraft(reason: str) -> Candidate:
            told = [
                {"role": "assistant", "content": draft.get("answer", "")},
                {"role": "user", "content": AGAIN.format(reason=reason)},
            ]
            return self._candidate(family, name, [*messages, *told], number + 1)

        return Candidate(
            name=name, kind="terminal", family=family, heldout=False, provenance=provenance,
            licence=self.settings.licence, write=write, draft=draft, redraft=redraft,
        )  # fmt: skip

    def _answer(self, name: str, messages: list[dict]) -> str:
        path = self.folder / f"{name}.json"
        asked = {"model": self.settings.model, "messages": messages}
        if path.is_file() and (kept := json.loads(path.read_text(encoding="utf-8")))["asked"] == asked:
            return kept["answer"]
        answer = self._ask(asked)
        write_whole(path, json.dumps({"asked": asked, "answer": answer}, ensure_ascii=False))
        return answer

    def _ask(self, asked: dict) -> str:
        """The text of the model's answer. Raises ``UserError`` where the server stays away, ``Rejected``
        where it answers with no text.
        """
        body = {**asked, "temperature": self.settings.temperature, "max_tokens": self.settings.max_tokens}
        response = self._patiently(lambda: self._client.post("chat/completions", json=body))
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise UserError(
                f"the drafter at {self.settings.base_url} answers, but not as the OpenAI interface does: "
                f"{response.text[:200]!r}"
            ) from None
        if not isinstance(content, str) or not content.strip():
            raise Rejected("the drafter's answer is empty")
        return content

    def _patiently(self, post: Callable[[], httpx.Response]) -> httpx.Response:
        where, reason = self.settings.base_url, ""
        for number in range(TRIES):
            if number:
                time.sleep(self.pause * 2 ** (number - 1))
            try:
                response = post()
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
                continue
            if response.status_code not in BUSY:
                break
            reason = f"status {response.status_code}"
        else:
            raise UserError(
                f"the drafter at {where} does not answer ({reason}, {TRIES} tries): start it, or set "
                "agent_tasks.drafter to scripted"
            )
        if response.status_code != 200:
            raise UserError(
                f"the drafter at {where} refuses the request "
                f"({told(response.status_code)}): {response.text[:200]!r}"
            )
        return response
