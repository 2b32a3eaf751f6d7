"""The licence of a Python distribution, from its metadata (core metadata 2.4); no text is guessed at."""

from email.message import Message

UNKNOWN = "unknown"
# What older metadata says -> SPDX. A BSD classifier does not say how many clauses.
CLASSIFIERS = {
    "MIT License": "MIT", "MIT No Attribution License (MIT-0)": "MIT-0", "BSD License": "BSD",
    "Apache Software License": "Apache-2.0", "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Zope Public License": "ZPL", "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License (GPL)": "GPL",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only", "Artistic License": "Artistic",
}  # fmt: skip
FREE_TEXT = {
    "mit": "MIT", "mit license": "MIT", "the mit license": "MIT", "bsd": "BSD", "new bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause", "apache": "Apache-2.0", "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0", "apache 2.0 license": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache-2.0": "Apache-2.0",
}  # fmt: skip


def licence_of(fields: Message) -> str:
    """SPDX from ``License-Expression``, else from the classifiers, else from a short ``License`` field."""
    expression = fields.get("License-Expression")
    if expression:
        return expression
    named = [
        value.rpartition(" :: ")[2]
        for value in fields.get_all("Classifier") or []
        if value.startswith("License ::")
    ]
    known = sorted({CLASSIFIERS[name] for name in named if name in CLASSIFIERS})
    if known:
        return " OR ".join(known)
    text = " ".join((fields.get("License") or "").split())
    if 0 < len(text) <= 60:
        return FREE_TEXT.get(text.lower(), text)
    return UNKNOWN
