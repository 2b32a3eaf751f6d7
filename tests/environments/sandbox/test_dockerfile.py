"""Dockerfiles are read as Docker reads them, and what is not understood is refused by name."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from environments.sandbox.dockerfile import BASE_ENVIRONMENT, Copy, Instruction, parse_dockerfile
from environments.sandbox.interface import ImageError

FROM = "FROM python:3.11-slim-bookworm\n"


def values(text: str) -> list:
    return [instruction.value for instruction in parse_dockerfile(FROM + text)[1:]]


def refusal(text: str) -> str:
    with pytest.raises(ImageError) as error:
        parse_dockerfile(text)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_shipped_dockerfile():
    text = """\
# What the task needs.
FROM python:3.11-slim-bookworm
ARG EDITION=2
ENV APP=/srv/app EDITION_NAME="the  $EDITION"
WORKDIR /srv
WORKDIR app
COPY . .
COPY data/*.csv /data/
RUN apt-get update \\
    # a comment between
 && echo "$EDITION"
USER nobody:nogroup
CMD ["bash"]
"""
    assert parse_dockerfile(text) == (
        Instruction("FROM", "python:3.11-slim-bookworm", 2),
        Instruction("ARG", ("EDITION", "2"), 3),
        Instruction("ENV", (("APP", "/srv/app"), ("EDITION_NAME", "the  2")), 4),
        Instruction("WORKDIR", "/srv", 5),
        Instruction("WORKDIR", "/srv/app", 6),
        Instruction("COPY", Copy((".",), "/srv/app/"), 7),
        Instruction("COPY", Copy(("data/*.csv",), "/data/"), 8),
        Instruction("RUN", 'apt-get update  && echo "$EDITION"', 9),
        Instruction("USER", "nobody:nogroup", 12),
    )


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("ENV a=b", [("a", "b")]),
        ("env a=b\tc=d", [("a", "b"), ("c", "d")]),
        ("ENV a b  c", [("a", "b  c")]),
        ("ENV a b=c", [("a", "b=c")]),
        ("ENV a=", [("a", "")]),
        ('ENV a="b c" d=e\\ f', [("a", "b c"), ("d", "e f")]),
        ("ENV a='$PATH \\n'", [("a", "$PATH \\n")]),
        ('ENV a="\\$PATH \\x"', [("a", "$PATH \\x")]),
        ("ENV a=\\$PATH", [("a", "$PATH")]),
        ("ENV PATH=/x:$PATH", [("PATH", "/x:" + BASE_ENVIRONMENT["PATH"])]),
        ("ENV a=${none}b$none", [("a", "b")]),
        ("ENV a=${none:-d} b=${PATH:+yes} c=${none:+no}", [("a", "d"), ("b", "yes"), ("c", "")]),
        ("ENV a=${none:-${also:-deep}}", [("a", "deep")]),
        ("ENV a='it'\"s\"", [("a", "its")]),
        ("ENV a=$ b=$1", [("a", "$"), ("b", "$1")]),
    ],
)
def test_env(line, pairs):
    assert values(line) == [tuple(pairs)]


def test_one_env_line_sees_only_the_lines_above_it():
    assert values("ENV a=1\nENV a=2 b=$a\nENV c=$a")[1:] == [(("a", "2"), ("b", "1")), (("c", "2"),)]


def test_env_wins_over_arg_and_arguments_above_from_must_be_named_again():
    text = "ARG A=1 B=2\nFROM x:$A\nARG A\nARG C=$A$B\nARG D\nENV A=9\nENV E=$A\n"
    instructions = parse_dockerfile(text)
    assert instructions[0].value == "x:1"
    assert [i.value for i in instructions if i.kind == "ARG"] == [("A", "1"), ("C", "1"), ("D", None)]
    assert instructions[-1].value == (("E", "9"),)


@pytest.mark.parametrize(
    ("line", "copy"),
    [
        ("COPY a b", Copy(("a",), "/b")),
        ("COPY /a/./b c/", Copy(("a/b",), "/c/")),
        ("COPY a b /c/", Copy(("a", "b"), "/c/")),
        ('COPY ["a b", "c d"]', Copy(("a b",), "/c d")),
        ("COPY $X/a /$X", Copy(("v/a",), "/v")),
        ("COPY a //b", Copy(("a",), "/b")),
        ("COPY a .", Copy(("a",), "/")),
    ],
)
def test_copy(line, copy):
    assert values(f"ENV X=v\n{line}")[1] == copy


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('RUN ["a", "b c"]', ("a", "b c")),
        ("RUN [ -f /x ] && true", "[ -f /x ] && true"),
        ("RUN echo $((1<<3)) '<<EOF' \"<<EOF\" <<<word", "echo $((1<<3)) '<<EOF' \"<<EOF\" <<<word"),
        ("RUN echo \\$HOME $NAME", "echo \\$HOME $NAME"),
        ("run\techo \\   \n\n  two\r\n", "echo   two"),
        ('SHELL ["bash", "-ec"]\nRUN echo $0', ("bash", "-ec", "echo $0")),
        ('SHELL ["bash", "-ec"]\nRUN ["a"]', ("a",)),
    ],
)
def test_run(line, value):
    assert values(line) == [value]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no FROM"]),
        ("# only this", ["no FROM"]),
        ("RUN x\nFROM y", ["line 1", "RUN", "before FROM"]),
        (FROM + "\n\nADD http://x/y /", ["line 4", "ADD", "COPY"]),
        (FROM + "HEALTHCHECK NONE", ["line 2", "HEALTHCHECK"]),
        (FROM + "ONBUILD RUN x", ["line 2", "ONBUILD"]),
        (FROM + "VOLUME /x", ["line 2", "VOLUME"]),
        (FROM + "FROM y", ["line 2", "FROM", "one stage"]),
        (FROM + "COPY --from=x a b", ["line 2", "COPY", "--from"]),
        (FROM + "COPY --chown=a b c", ["line 2", "COPY", "--chown"]),
        (FROM + "RUN --mount=type=cache,target=/x y", ["line 2", "RUN", "--mount"]),
        ("FROM --platform=linux/arm64 x", ["line 1", "FROM", "--platform"]),
        (FROM + "RUN cat <<EOF\nhello\nEOF", ["line 2", "RUN", "here-document"]),
        (FROM + "COPY <<EOF /x\nhello\nEOF", ["line 2", "COPY", "here-document"]),
        ("# escape=`\n" + FROM, ["line 1", "escape"]),
        (FROM + "COPY ../x /", ["line 2", "COPY", "'../x'"]),
        (FROM + "COPY a", ["line 2", "COPY", "target"]),
        (FROM + "COPY a b c", ["line 2", "COPY", "/"]),
        (FROM + "COPY [] ", ["line 2", "COPY"]),
        (FROM + "RUN", ["line 2", "RUN"]),
        (FROM + 'RUN ["a", 1]', ["line 2", "RUN", "strings"]),
        (FROM + "ENV a", ["line 2", "ENV", "value"]),
        (FROM + "ENV =b", ["line 2", "ENV", "name"]),
        (FROM + "ENV a=b c", ["line 2", "ENV", "'c'"]),
        (FROM + "ENV a='b", ["line 2", "ENV", "quote"]),
        (FROM + "ENV a=${b", ["line 2", "ENV", "${"]),
        (FROM + "ENV a=${b#c}", ["line 2", "ENV", ":-"]),
        (FROM + "USER a;b", ["line 2", "USER"]),
        (FROM + "USER $none", ["line 2", "USER"]),
        (FROM + "WORKDIR $none", ["line 2", "WORKDIR"]),
        (FROM + "RUN a \\\\\nRUN b", ["line 2", "backslashes"]),
        (FROM + "INSTALL x", ["line 2", "INSTALL"]),
        ("FROM $none", ["line 1", "FROM"]),
        ("FROM a b", ["line 1", "FROM"]),
        ("FROM a\0", ["zero byte"]),
        (FROM + "ENV A=" + "x" * 9000 + "\nENV B=$A$A", ["line 3", "ENV", "characters"]),
        ("#" * 200_000, ["characters"]),
    ],
)
def test_what_is_not_understood_is_named(text, words):
    message = refusal(text)
    assert [word for word in words if word not in message] == []


def test_escape_counts_only_at_the_top():
    assert parse_dockerfile(
        "# escape=\\\n# syntax=docker/dockerfile:1\n" + FROM + "# escape=`\nRUN a \\\n b"
    )[1].value == ("a  b")


PIECES = (
    *"FROM ARG ENV COPY RUN USER WORKDIR SHELL ADD CMD --from= AS".split(),
    *(" ", "\t", "\n", "\r", "\\\n", "\\", "# escape=", "a", "$a", "x=1"),
    *("$", "${", "}", ":-", ":+", "'", '"', "[", "]", ",", "=", "<<", "/", ".."),
    *("\u2028", "\x85", "\ufeff", "ß", "\ud800", "\0"),
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60).map("".join))
@example(FROM + "RUN " + "[" * 90_000)
@example(FROM + "ENV a=" + "${a:-" * 15_000)
@example(FROM + 'ENV a="' + "$PATH" * 15_000 + '"')
@example(FROM + "ENV a=" + "x" * 9_000 + "\nENV a=$a" * 1_000)
@example(FROM + "RUN " + "[1" * 20_000 + "]" * 20_000)
@example(FROM + "ENV " + "a=b " * 24_000)
def test_no_text_raises_anything_else(text):
    for case in (text, FROM + text):
        try:
            instructions = parse_dockerfile(case)
        except ImageError as error:
            assert "\n" not in str(error)
            continue
        assert instructions[0].kind == "FROM"
        lines = [instruction.line for instruction in instructions]
        assert lines == sorted(lines)
