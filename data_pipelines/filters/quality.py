"""One question for every document: is it worth training on?"""

from data_pipelines.documents import Document
from data_pipelines.filters import code, prose
from pipeline.recipe.data import CurateSection


def reason_to_drop(document: Document, section: CurateSection) -> str | None:
    """Why a document fails the quality rules, or None."""
    if len(document.text.strip()) < section.min_characters:
        return "short"
    if document.kind == "code":
        return code.reason_to_drop(document.text, document.language, section.max_line_characters)
    return prose.reason_to_drop(document.text)
