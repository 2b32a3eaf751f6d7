"""How a question reads: a letter for each unnamed entity, a sentence for each statement."""

from environments.search.corpus import Graph
from environments.search.questions import Question, Statement, Term

OPENING = "Different letters stand for different entities. According to the documents:"
CLOSING = (
    "Which {asked} is meant? Look it up with the tools, then answer with its name alone on the last line."
)


def prompt(graph: Graph, question: Question) -> str:
    sentences = " ".join(f"{_sentence(graph, question, s)}." for s in question.statements)
    return f"{OPENING} {sentences} {CLOSING.format(asked=variable_name(question, 0))}"


def variable_name(question: Question, variable: int) -> str:
    """``country C``: the farthest entity is A, the one asked for has the last letter."""
    letter = "ABCDEFGH"[len(question.kinds) - 1 - variable]
    return f"{question.kinds[variable]} {letter}"


def statement_text(
    graph: Graph, question: Question, statement: Statement, path: list[str] | None = None
) -> str:
    """The sentence without its point; with ``path`` (the entity of each variable) everything is named."""

    def name(term: Term) -> str:
        if isinstance(term, str):
            return graph.entities[term].name
        return variable_name(question, term) if path is None else graph.entities[path[term]].name

    pattern = graph.relations[statement.relation].statement
    return pattern.format(subject=name(statement.subject), object=name(statement.object))


def query(graph: Graph, question: Question, statement: Statement, path: list[str], known: set[int]) -> str:
    """What to search for a statement: names for what is known, the kind for what is not."""

    def name(term: Term) -> str:
        if isinstance(term, str) or term in known:
            return graph.entities[term if isinstance(term, str) else path[term]].name
        return question.kinds[term]

    pattern = graph.relations[statement.relation].statement
    return pattern.format(subject=name(statement.subject), object=name(statement.object))


def _sentence(graph: Graph, question: Question, statement: Statement) -> str:
    """With a capital, unless a name comes first, which stays as it is written."""
    text = statement_text(graph, question, statement)
    first = graph.relations[statement.relation].statement[:9]
    term = {"{subject}": statement.subject, "{object} ": statement.object}.get(first)
    return text if isinstance(term, str) else text[:1].upper() + text[1:]
