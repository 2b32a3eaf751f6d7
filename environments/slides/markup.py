"""The part of HTML that a slide may use: read into a tree by ourselves and written out again (level 1).

The browser gets what we wrote, never what the policy wrote: elements, attributes and nesting outside these
lists are refused, so no parser difference, script, frame, link or image can reach it.
"""

import re
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser

from environments.slides.style import Refused, Style

MAX_CHARACTERS = 20_000
MAX_ELEMENTS = 200
MAX_DEPTH = 24
MAX_TEXT = 800  # characters to read, more than twice what any family asks for: lines are compared in pairs

TEXT = ("h1", "h2", "h3", "p", "li", "th", "td")  # they hold what is to be read
INLINE = {"span", "strong", "em", "b", "i", "br"}
FLOW = {
    "header",
    "main",
    "footer",
    "section",
    "article",
    "div",
    "ul",
    "ol",
    "table",
    "hr",
    "h1",
    "h2",
    "h3",
    "p",
}
EMPTY = {"meta", "br", "hr"}
INSIDE: dict[str, set[str]] = {
    "html": {"head", "body"}, "head": {"meta", "title", "style"}, "title": set(), "style": set(),
    "ul": {"li"}, "ol": {"li"}, "table": {"thead", "tbody", "tr"}, "thead": {"tr"}, "tbody": {"tr"},
    "tr": {"th", "td"}, **dict.fromkeys(TEXT, INLINE), **dict.fromkeys(INLINE - {"br"}, INLINE),
    **dict.fromkeys(("body", "header", "main", "footer", "section", "article", "div"), FLOW | INLINE),
}  # fmt: skip
NO_TEXT = {"html", "head", "ul", "ol", "table", "thead", "tbody", "tr"}
KEPT = {"class", "id", "style", "lang", "scope"}
IGNORED = re.compile(r"charset|name|content|role|title|alt|(aria|data)-[\w-]+")  # they render nothing


@dataclass
class Element:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list["Element | str"] = field(default_factory=list)

    def elements(self):
        """This element and all below it, in the order of the document."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.elements()

    def text(self) -> str:
        """All text below, white space made uniform; a line break counts as a space."""
        parts = [child if isinstance(child, str) else _inner(child) for child in self.children]
        return " ".join("".join(parts).split())


def _inner(element: Element) -> str:
    if element.tag == "br":
        return " "
    return "".join(child if isinstance(child, str) else _inner(child) for child in element.children)


@dataclass(frozen=True)
class Page:
    """A page that may be rendered; ``html`` is its whole document."""

    body: Element
    style: Style
    html: str


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.top = Element("")
        self._open, self._count = [self.top], 0

    def handle_starttag(self, tag, attrs):
        parent = self._open[-1]
        allowed = INSIDE[parent.tag] if parent.tag else {"html"}
        if tag not in INSIDE and tag not in EMPTY:
            raise Refused(f"the element {tag[:20]} has no place on a slide")
        if tag not in allowed:
            raise Refused(f"the element {tag} stands inside {parent.tag or 'no html element'}")
        element = Element(tag, _attributes(tag, attrs))
        parent.children.append(element)
        self._count += 1
        if self._count > MAX_ELEMENTS or len(self._open) > MAX_DEPTH:
            raise Refused(f"more than {MAX_ELEMENTS} elements, or {MAX_DEPTH} within each other")
        if tag not in EMPTY:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        if tag not in EMPTY:
            raise Refused(f"the element {tag[:20]} is not closed")
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        if tag != self._open[-1].tag or len(self._open) == 1:
            raise Refused(f"the end of {tag[:20]} matches no beginning")
        self._open.pop()

    def handle_data(self, data):
        parent = self._open[-1]
        if data.strip() and (parent is self.top or parent.tag in NO_TEXT):
            raise Refused(f"text directly inside {parent.tag or 'no element'}")
        if parent is not self.top:
            parent.children.append(data)

    def handle_decl(self, decl):
        if decl.lower().split() != ["doctype", "html"]:
            raise Refused("another declaration than <!DOCTYPE html>")

    def handle_pi(self, data):
        raise Refused("a processing instruction")

    def unknown_decl(self, data):
        raise Refused("an unknown declaration")

    def close(self):
        super().close()
        if len(self._open) > 1:
            raise Refused(f"the element {self._open[-1].tag} is not closed")


def _attributes(tag: str, pairs: list[tuple[str, str | None]]) -> dict[str, str]:
    kept = {}
    for name, value in pairs:
        if name in kept:
            raise Refused(f"the attribute {name} stands twice")
        if name in KEPT:
            kept[name] = value or ""
        elif not IGNORED.fullmatch(name):
            raise Refused(f"the attribute {name[:20]} has no place on a slide")
    return kept


def read_page(document: str) -> Page:
    """Parse and check a document. Raises ``Refused`` with the reason where it may not be rendered."""
    if len(document) > MAX_CHARACTERS:
        raise Refused(f"the page is longer than {MAX_CHARACTERS} characters")
    if any(ord(mark) < 32 and mark not in "\n\r\t" or "\ud800" <= mark <= "\udfff" for mark in document):
        raise Refused("control characters in the page")
    reader = _Reader()
    try:
        reader.feed(document)
        reader.close()
    except AssertionError as error:  # of the parser of the standard library, on some malformed declarations
        raise Refused("the page does not parse") from error
    roots = [child for child in reader.top.children if isinstance(child, Element)]
    bodies = [child for root in roots for child in root.children if getattr(child, "tag", "") == "body"]
    if len(roots) != 1 or len(bodies) != 1:
        raise Refused("the answer is not one HTML document with one body")
    if len(bodies[0].text()) > MAX_TEXT:
        raise Refused(f"more than {MAX_TEXT} characters to read")
    style = Style()
    sheets = [element for element in roots[0].elements() if element.tag == "style"]
    written = "\n".join(style.sheet("".join(sheet.children)) for sheet in sheets)
    body = _write(bodies[0], style)
    head = f'<meta charset="utf-8"><style>{written}</style>'
    return Page(bodies[0], style, f"<!DOCTYPE html><html><head>{head}</head>{body}</html>")


def _write(element: Element, style: Style) -> str:
    attributes = dict(element.attributes)
    if "style" in attributes:
        attributes["style"] = style.declarations(attributes["style"])
    written = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    start = f"<{element.tag}{written}>"
    if element.tag in EMPTY:
        return start
    inner = (escape(c) if isinstance(c, str) else _write(c, style) for c in element.children)
    return f"{start}{''.join(inner)}</{element.tag}>"
