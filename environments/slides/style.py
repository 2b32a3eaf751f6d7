"""The part of CSS that a slide may use, read by ourselves and written out again (level 1).

What is known to cheat a measurement is refused; what is merely unknown is left out of the rendered page and
counted as a fault of style. So the browser never sees a declaration that was not understood here.
"""

import re
from dataclasses import dataclass, field

LARGEST = 4000  # px, em, % or whatever unit: nothing on a slide of 1280x720 px needs more
SIZES = range(20, 73, 4)  # px: the scale of font sizes, our choice
SIZE_COUNT = 4  # different font sizes on a slide
COLOUR_COUNT = 6
CHROMA = 0.8  # largest minus smallest channel, of 1: above it a colour glares (our choice)

# Each hides, cuts or distorts what is measured. The paper names truncation by ``overflow`` (section 4.2.5).
TRICKS = (
    "overflow", "clip", "mask", "transform", "translate", "rotate", "scale", "zoom", "opacity", "visibility",
    "filter", "backdrop", "animation", "transition", "content", "text-indent", "mix-blend", "contain",
    "pointer-events", "perspective", "offset", "object", "text-overflow", "line-clamp",
)  # fmt: skip
SIDES = ("top", "right", "bottom", "left")
KNOWN = {
    "box-sizing", "border-collapse", "border-spacing", "border-radius", "border-style", "border-width",
    "font-family", "font-weight", "font-style", "line-height", "text-align", "text-transform",
    "text-decoration", "vertical-align", "list-style", "list-style-type", "list-style-position",
    "gap", "row-gap", "column-gap", "flex", "flex-grow", "flex-shrink", "flex-basis", "flex-direction",
    "flex-wrap", "justify-content", "justify-items", "justify-self", "align-content", "align-items",
    "align-self", "place-items", "place-content", "grid-template-columns", "grid-template-rows",
    "grid-column", "grid-row", "table-layout", "margin", "padding", "border", "width", "height", "min-width",
    "min-height", "max-width", "max-height", "inset", *SIDES,
    *(f"{kind}-{side}" for kind in ("margin", "padding", "border") for side in SIDES),
}  # fmt: skip
_COLOUR = r"(#[0-9a-f]{3}|#[0-9a-f]{6}|white|black|transparent|inherit|currentcolor)"
_DISPLAYS = r"block|inline|inline-block|flex|inline-flex|grid|list-item|table|table-row|table-cell"
# Values that these properties may have; others of theirs are left out.
VALUES = {
    "display": _DISPLAYS, "position": "static|relative|absolute", "white-space": "normal|nowrap",
    "z-index": r"auto|\d{1,5}",
    "letter-spacing": r"normal|0|[0-4]?(\.\d+)?px|0?\.\d+em", "font-size": r"\d+px",
    "color": _COLOUR, "background": _COLOUR, "background-color": _COLOUR, "border-color": _COLOUR,
    **{f"border-{side}-color": _COLOUR for side in SIDES},
}  # fmt: skip
# The words of these properties and of those whose names go on with "-".
TOKENS = {
    "border": rf"\d+(\.\d+)?(px|em|%)?|solid|dashed|dotted|none|collapse|separate|{_COLOUR}",
    "list-style": "none|disc|circle|square|decimal|inside|outside",
}
FUNCTIONS = {"repeat", "minmax", "calc", "min", "max", "clamp"}
_PSEUDO = r":(?:first-child|last-child|root|nth-child\([\dn+ ]{1,8}\)|not\(:(?:first|last)-child\))"
_SELECTOR = re.compile(rf"(?:[\w.#*>+~ ,\n\r\t-]|{_PSEUDO})+", re.IGNORECASE)


class Refused(Exception):
    """A page that is not rendered at all: it scores 0, for the reason given."""


@dataclass
class Style:
    """What all declarations of a page use."""

    sizes: set[int] = field(default_factory=set)  # px
    colours: set[str] = field(default_factory=set)  # as #rrggbb
    left_out: list[str] = field(default_factory=list)  # declarations, as written

    def faults(self) -> list[str]:
        """The style rules of level 1 that are broken, one sentence each."""
        found = []
        if self.left_out:
            found.append(f"declarations outside the rules: {'; '.join(sorted(set(self.left_out))[:3])}")
        if not self.sizes <= set(SIZES) or len(self.sizes) > SIZE_COUNT:
            found.append(f"font sizes {sorted(self.sizes)} are not {SIZE_COUNT} or fewer of the scale")
        if len(self.colours) > COLOUR_COUNT:
            found.append(f"{len(self.colours)} colours instead of {COLOUR_COUNT} or fewer")
        if glaring := sorted(colour for colour in self.colours if chroma(colour) > CHROMA):
            found.append(f"glaring colour {glaring[0]}")
        return found

    def sheet(self, text: str) -> str:
        """A style sheet, as much of it as may be rendered. Raises ``Refused``."""
        if text.count("/*") != text.count("*/"):
            raise Refused("a comment in a style sheet that does not end")
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        for mark in ("@", "\\", "<", "/*"):
            if mark in text:
                raise Refused(f"a style sheet with {mark!r}")
        *rules, rest = text.split("}")
        if rest.strip() or any(rule.count("{") != 1 for rule in rules):
            raise Refused("a style sheet that does not parse")
        written = []
        for selector, body in (rule.split("{") for rule in rules):
            if not _SELECTOR.fullmatch(selector.strip()):
                raise Refused(f"the selector {selector.strip()[:40]!r}")
            written.append(f"{' '.join(selector.split())} {{{self.declarations(body)}}}")
        return "\n".join(written)

    def declarations(self, text: str) -> str:
        """The inside of a rule or of a ``style`` attribute. Raises ``Refused``."""
        if any(mark in text for mark in ("\\", "<", "@", "{", "}", "/*")):
            raise Refused(f"the style {text[:40]!r}")
        parts = [part for part in text.lower().split(";") if part.strip()]
        return ";".join(kept for part in parts if (kept := self._declaration(part)))

    def _declaration(self, text: str) -> str:
        name, _, value = (part.strip() for part in text.partition(":"))
        # Importance is taken away: the renderer's own rules must win.
        value = " ".join(value.replace("!important", "").split())
        if not re.fullmatch(r"[a-z-]+", name) or not value:
            raise Refused(f"the style {text.strip()[:40]!r} does not parse")
        _refuse_tricks(name, value)
        if not _is_known(name, value):
            self.left_out.append(f"{name}: {value}"[:60])
            return ""
        if name == "font-size":
            self.sizes.add(int(value[:-2]))
        self.colours |= {_long(found) for found in re.findall(r"#[0-9a-f]+|\bwhite\b|\bblack\b", value)}
        return f"{name}:{value}"


def _refuse_tricks(name: str, value: str) -> None:
    bare = name.removeprefix("-webkit-").removeprefix("-moz-")
    if bare.startswith(TRICKS) and not (bare.startswith("overflow") and value == "visible"):
        raise Refused(f"the property {name} can hide or distort content")
    if re.search(r"url\(|image", value):
        raise Refused("a style that fetches something")
    if bare == "display" and value in ("none", "contents"):
        raise Refused(f"display: {value} hides content")
    lengths = re.sub(r"#[0-9a-f]+", "", value)
    if re.search(r"\de[+-]?\d", lengths):
        raise Refused(f"a number with an exponent in {name}")
    if name != "z-index" and any(float(number) > LARGEST for number in re.findall(r"\d+", lengths)):
        raise Refused(f"a length beyond {LARGEST} in {name}")


def _is_known(name: str, value: str) -> bool:
    if name in VALUES:
        return re.fullmatch(VALUES[name], value) is not None
    if name not in KNOWN:
        return False
    for start, token in TOKENS.items():
        if name.startswith(start):
            return all(re.fullmatch(token, word) for word in value.split())
    marks = r"[\w ,'\"-]+" if name == "font-family" else r"[\w %.,()+*/-]+"
    return bool(re.fullmatch(marks, value)) and set(re.findall(r"([\w-]+)\(", value)) <= FUNCTIONS


def _long(colour: str) -> str:
    named = {"white": "#ffffff", "black": "#000000"}.get(colour, colour)
    return named if len(named) != 4 else "#" + "".join(2 * digit for digit in named[1:])


def chroma(colour: str) -> float:
    """Largest minus smallest channel of #rrggbb, of 1."""
    channels = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return (max(channels) - min(channels)) / 255
