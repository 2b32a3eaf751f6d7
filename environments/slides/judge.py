"""The verdict on a page: level 1 before it is rendered, levels 2 and 3 on what was measured.

reward = share of the wanted content * 0.5 ** (rules broken in all three levels)

and 0 for a page that is refused, that hides text or that shows nothing wanted. The paper gives no weights
(section 4.2.5); these are our choice.
"""

import re
from typing import Any

from environments.interface import Task, Verdict
from environments.slides.browser import RenderError, measure
from environments.slides.content import compare, pieces
from environments.slides.layout import layout_faults
from environments.slides.look import look_faults
from environments.slides.markup import Page, read_page
from environments.slides.rendering import Rendering, read_rendering
from environments.slides.style import Refused

FAULT = 0.5  # what is left of the reward after each broken rule
BLANK = "<!DOCTYPE html><html><head></head><body></body></html>"


def read_document(content: Any) -> str | None:
    """The one document of a message: all of it, or what its only Markdown fence holds."""
    if not isinstance(content, str):
        return None
    fences = re.findall(r"```(?:html)?\n(.*?)```", content, re.DOTALL)
    document = (fences[0] if len(fences) == 1 else content).strip()
    return document if document.lower().startswith(("<!doctype", "<html")) else None


async def judge_pages(program: str, tasks: list[Task], documents: list[str | None]) -> list[Verdict]:
    """Verdicts of an answer to each task; all that are rendered share one start of the browser, so one that
    fails there takes the others with it: give it pages that are known to render, or one.
    """
    verdicts: list[Verdict | None] = []
    rendered: list[tuple[int, Page, float, list[str]]] = []
    for task, document in zip(tasks, documents, strict=True):
        try:
            page, share, faults = _first_level(task, document)
            rendered.append((len(verdicts), page, share, faults))
            verdicts.append(None)
        except Refused as refusal:
            verdicts.append(Verdict(0.0, str(refusal)))
    measured = await _measure(program, [page.html for _, page, _, _ in rendered])
    for place, (at, page, share, faults) in enumerate(rendered):
        if isinstance(measured, Verdict):
            verdicts[at] = measured
        else:
            verdicts[at] = _last_levels(tasks[at], page, share, faults, read_rendering(measured[place]))
    return verdicts


def _first_level(task: Task, document: str | None) -> tuple[Page, float, list[str]]:
    if document is None:
        raise Refused("there is no single HTML document")
    page = read_page(document)
    share, more = compare(page, task.truth)
    if share == 0:
        raise Refused("nothing of what was asked for is on the page")
    return page, share, page.style.faults() + ["there is other text than asked for"] * more


async def _measure(program: str, pages: list[str]) -> list[dict] | Verdict:
    """Or one verdict for all: 0 where the pages take too long and a blank one does not, None else."""
    if not pages:
        return []
    try:
        return await measure(program, pages)
    except RenderError as error:
        return Verdict(None, str(error))
    except TimeoutError:
        try:
            await measure(program, [BLANK])
        except (RenderError, TimeoutError):
            return Verdict(None, "the browser does not answer in time, not even for a blank page")
        return Verdict(0.0, "the page takes too long to render")


def _last_levels(task: Task, page: Page, share: float, faults: list[str], rendering: Rendering) -> Verdict:
    if _letters(" ".join(text.text for text in rendering.texts)) != _letters(page.body.text()):
        return Verdict(0.0, "the browser reads another text than the markup has")
    for text in rendering.texts:
        if reason := text.hidden:
            return Verdict(0.0, f"{text.text[:30]!r} {reason}")
    faults = [
        *faults,
        *layout_faults(rendering, task.family, pieces(task.truth)),
        *look_faults(rendering, task.family, task.truth["tone"]),
    ]
    told = [] if share == 1 else [f"{share:.0%} of the content is there"]
    return Verdict(share * FAULT ** len(faults), "; ".join(told + faults) or "all rules hold")


def _letters(text: str) -> str:
    return "".join(text.split())
