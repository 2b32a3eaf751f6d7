"""The header of a Debian patch (DEP-3, https://dep-team.pages.debian.net/deps/dep3/), often as git mails it.

Fields and prose may stand in any order. The header ends where ``---`` or the diff begins.
"""

import re
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.header import decode_header, make_header

LONGEST_BODY = 4000  # characters
_END = re.compile(r"---(?: |$)|diff |Index: |\*\*\* |\+\+\+ ")
_FIELD = re.compile(
    r"(From|Author|Date|Subject|Description|Origin|Bug(?:-\w+)?|Forwarded|Reviewed-by|Acked-by|Last-Update"
    r"|Applied-Upstream|Signed-off-by|Co-authored-by|Tested-by|Reported-by|Cc|MIME-Version|Message-Id"
    r"|Content-[\w-]+|Gbp-[\w-]+|X-[\w-]+):[ \t]*(.*)",
    re.I,
)
_PREFIX = re.compile(r"(\[[^\]]*patch[^\]]*\]\s*)+", re.I)
# Prose that says where the change came from and not what it is about.
_NOISE = re.compile(
    r"From [0-9a-f]{40} .*|commit [0-9a-f]{7,40}\b.*|\s*\(?(cherry picked|backported) from .*|\s*\S+://\S+\s*",
    re.I,
)


@dataclass(frozen=True)
class Header:
    title: str  # one line; empty where the patch says nothing
    body: str  # paragraphs; may be empty
    links: tuple[str, ...]  # "Origin: ...", "Bug-Debian: ...": where it came from


def read_header(patch: str) -> Header:
    """What a patch says of itself."""
    fields, prose = _split(patch)
    values = {name.lower(): value for name, value in reversed(fields)}  # of two the first counts
    synopsis, _, long = values.get("description", "").partition("\n")
    title = _decoded(" ".join(values.get("subject", "").split())) or synopsis.strip()
    body = "\n".join([*([long, ""] if long else []), *prose])
    if not title:
        title, _, body = body.strip("\n").partition("\n")
    links = tuple(
        f"{name}: {value}" for name, value in fields if name.lower() == "origin" or name.lower()[:3] == "bug"
    )
    body = re.sub(r"\n{3,}", "\n\n", body).strip("\n")[:LONGEST_BODY].rstrip()
    return Header(_PREFIX.sub("", title).strip().removesuffix("."), body, links)


def _split(patch: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Fields in their order, continued lines joined, and the lines of prose."""
    fields: list[tuple[str, str]] = []
    prose: list[str] = []
    open_field = False
    for line in patch.splitlines():
        if _END.match(line):
            break
        if field := _FIELD.fullmatch(line):
            fields.append((field[1], field[2].strip()))
        elif open_field and line[:1] in (" ", "\t") and line.strip():
            name, value = fields[-1]
            fields[-1] = name, f"{value}\n{'' if line.strip() == '.' else line[1:].rstrip()}"
            continue
        elif not _NOISE.fullmatch(line):
            prose.append(line.rstrip())
        open_field = field is not None
    return fields, prose


def _decoded(value: str) -> str:
    """A value in the words that RFC 2047 encodes; as it stands where they are malformed."""
    try:
        return str(make_header(decode_header(value)))
    except (HeaderParseError, LookupError, UnicodeError):
        return value
