"""Multi-hop questions over a corpus, answered with search, open and find (arXiv 2602.15763, section 4.2.3).

search = Search(Path("corpus"))                # of data_pipelines.search_tasks
task = search.make_task("links2", seed=0)
"""

import random
from pathlib import Path

from environments.episode import answer, call_message
from environments.interface import DRAWS, Draft, Environment, Message, Mode, Task
from environments.search import wording
from environments.search.corpus import Corpus, Graph, load
from environments.search.episode import PYTHON, TOOLS, SearchEpisode, StartSandbox
from environments.search.index import Index
from environments.search.names import Names
from environments.search.questions import Question, Statement, Walks
from pipeline.errors import UserError

# The steps of a walk, from the entity that is described to the answer. "shared", "sharing" is two entities
# that have one unnamed thing in common.
CHAINS = {
    "links2": ("link", "link"),
    "links3": ("link", "link", "link"),
    "attribute2": ("link", "attribute"),
    "attribute3": ("link", "link", "attribute"),
    "shared3": ("shared", "sharing", "attribute"),
    "links4": ("link", "link", "link", "link"),
    "shared4": ("shared", "sharing", "link", "attribute"),
}
TURNS = 100  # of an episode; the paper is silent, open search agents of its time have 100
CALLS = 200


class Search(Environment):
    """``folder`` holds a corpus, or is one. ``start_sandbox`` adds the tool ``python``.

    Held out is a third of the entities: no walk of a training task passes one, every answer of an evaluation
    task is one. Families kept for evaluation have one step more than the trained ones. A family whose steps
    the corpus does not have is left out.
    """

    name = "search"
    families = ("links2", "links3", "attribute2", "attribute3", "shared3", "meeting")
    evaluation_only = ("links4", "shared4")

    def __init__(
        self,
        folder: Path | Corpus,
        turns: int = TURNS,
        calls: int = CALLS,
        start_sandbox: StartSandbox | None = None,
    ):
        self.corpus = folder if isinstance(folder, Corpus) else load(folder)
        self.graph = Graph(self.corpus)
        self.names = Names(self.corpus.entities)
        self._walks = Walks(self.graph)
        self.families = tuple(filter(self._possible, self.families))
        self.evaluation_only = tuple(filter(self._possible, self.evaluation_only))
        self._index: Index | None = None
        self._turns, self._calls, self._start_sandbox = turns, calls, start_sandbox
        self.provenance = f"search corpus {self.corpus.name} {self.corpus.digest}"
        self.licence = (
            " AND ".join(sorted({source["licence"] for source in self.corpus.sources})) or "unknown"
        )

    def _possible(self, family: str) -> bool:
        return all(self._walks.can(role) for role in CHAINS.get(family, ("link",)))

    @property
    def index(self) -> Index:
        """Built at the first search, since making tasks needs none."""
        if self._index is None:
            self._index = Index(list(self.corpus.documents.values()))
        return self._index

    def make_task(self, family: str, seed: int, heldout: bool = False) -> Task:
        """As every environment's, but the side of the split is that of the entities instead of the prompt."""
        if family not in self.families + self.evaluation_only or (
            family in self.evaluation_only and not heldout
        ):
            return super().make_task(family, seed, heldout)  # which says what is wrong
        rng = random.Random(f"{self.name}/{self.corpus.digest}/{family}/{seed}/{heldout}")
        for _ in range(DRAWS):
            draft = self._try(family, heldout, rng)
            if draft is not None:
                return self._name(draft, family, seed, heldout)
        raise UserError(
            f"search/{family}: the corpus {self.corpus.name} gave no {'held-out' if heldout else 'training'} "
            f"question in {DRAWS} draws; take a larger corpus or leave the family out"
        )

    def draw(self, family: str, rng: random.Random) -> Draft:
        """A training task; families kept for evaluation have held-out answers."""
        for _ in range(DRAWS):
            draft = self._try(family, family in self.evaluation_only, rng)
            if draft is not None:
                return draft
        raise UserError(f"search/{family}: the corpus {self.corpus.name} gave no question in {DRAWS} draws")

    def _try(self, family: str, heldout: bool, rng: random.Random) -> Draft | None:
        if family == "meeting":
            drawn = self._walks.meeting(heldout, rng)
        else:
            drawn = self._walks.chain(CHAINS[family], heldout, rng)
        if drawn is None:
            return None
        question, path = drawn
        text = wording.prompt(self.graph, question)
        if self.names.are_told(path, text):
            return None
        truth = {
            "answers": self.names.accepted[path[0]],
            "answer": self.graph.entities[path[0]].name,
            "question": question.to_record(),
            "path": path,
            "corpus": self.corpus.digest,
        }
        tools = (*TOOLS, PYTHON) if self._start_sandbox else TOOLS
        return Draft(({"role": "user", "content": text},), truth, 2 * len(question.statements), tools)

    def episode(self) -> SearchEpisode:
        return SearchEpisode(self.corpus, self.index, self._turns, self._calls, self._start_sandbox)

    def evidence(self, task: Task) -> list[tuple[str, str, int]]:
        """For each statement in its order: what to search, the document that states it, the line."""
        question, path = Question.from_record(task.truth["question"]), task.truth["path"]
        found, known = [], set()
        for statement in question.statements:
            fact = self.graph.evidence[self._bound(statement, path)]
            query = wording.query(self.graph, question, statement, path, known)
            found.append((query, fact.document, fact.line))
            known |= {term for term in (statement.subject, statement.object) if isinstance(term, int)}
        return found

    @staticmethod
    def _bound(statement: Statement, path: list[str]) -> tuple[str, str, str]:
        subject, object_ = (
            path[term] if isinstance(term, int) else term for term in (statement.subject, statement.object)
        )
        return statement.relation, subject, object_

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        """Searches and opens the document behind each statement, and says what it shows."""
        question, path = Question.from_record(task.truth["question"]), task.truth["path"]
        thinks, messages, seen = mode != "off", [], []
        for statement, (query, document, line) in zip(question.statements, self.evidence(task), strict=True):
            before = " ".join(seen) if mode == "preserved" else "".join(seen[-1:])
            thought = f"{before} Next: {query}.".strip() if thinks else None
            messages.append(call_message(thought, "search", query=query))
            messages.append(call_message(f"{document} should say it." if thinks else None, "open",
                                         document=document, line=line))  # fmt: skip
            seen.append(f"{wording.statement_text(self.graph, question, statement, path)}.")
        last = task.truth["answer"]
        return [*messages, answer(f"{' '.join(seen)} So it is {last}." if thinks else None, last)]

    def mistake(self, task: Task, mode: Mode, rng: random.Random) -> Message | None:
        """A search for the whole question at once."""
        query = task.messages[0]["content"]
        return call_message(None if mode == "off" else "All at once.", "search", query=query)
