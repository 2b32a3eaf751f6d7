"""Import order, fill-in-the-middle, mixes."""

import sysconfig
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from data_pipelines.fill_in_the_middle import cut
from data_pipelines.long_texts import long_documents, repository_texts
from data_pipelines.mixing import passes, quotas
from data_pipelines.repositories import in_import_order, repositories
from pipeline.errors import UserError
from tests.data_pipelines.conftest import document

STDLIB = Path(sysconfig.get_path("stdlib"))


def _order(**files: str) -> list[str]:
    documents = [document(text, path.replace("__", "/") + ".py") for path, text in files.items()]
    return [file.path.removesuffix(".py") for file in in_import_order(documents)]


def test_files_follow_those_they_import():
    assert _order(
        p__a="from p.b import (  # first\n    x,\n    y,\n)\nfrom . import c\n",
        p__b="import os, p.c as c\n",
        p__c="from .sub.d import z\n",
        p__sub__d="def f():\n    from ..e import w\n",
        p__e="x = 1\n",
    ) == ["p/e", "p/sub/d", "p/c", "p/b", "p/a"]


def test_a_circle_of_imports_is_cut_at_the_fewest():
    assert _order(p__a="import p.b\nimport p.c\n", p__b="import p.a\n", p__c="x = 1\n") == [
        "p/c",
        "p/a",
        "p/b",
    ]


def test_a_real_package_in_import_order():
    files = [document(f.read_text(), f"json/{f.name}") for f in sorted((STDLIB / "json").glob("*.py"))]
    order = [file.path for file in repositories(files)["p"]]
    assert order.index("json/scanner.py") < order.index("json/decoder.py") < order.index("json/__init__.py")
    assert order.index("json/__init__.py") < order.index("json/tool.py")


def test_repository_texts_name_paths_and_end_only_at_the_end():
    files = [document(f.read_text(), f"json/{f.name}") for f in sorted((STDLIB / "json").glob("*.py"))]
    texts = list(islice(repository_texts(files, None, 0)(4096), 20))
    assert all(text.startswith("# file: json/") for text, _ in texts)
    last = repositories(files)["p"][-1]
    assert [text.endswith(last.text.rstrip() + "\n\n") for text, _ in texts] == [end for _, end in texts]
    assert [text for text, _ in islice(repository_texts(files, None, 0)(4096), 20)] == [
        text for text, _ in texts
    ]
    with pytest.raises(UserError, match="no package has two Python files"):
        repository_texts(files[:1], None, 0)


def test_long_documents_are_longer_than_the_context():
    documents = [document("line\n" * n, str(n)) for n in (10, 1000, 4000)]
    for text, to_its_end in islice(long_documents(documents, None, 0)(1000), 30):
        assert 0 < len(text) <= 8000 and text.startswith("line")
        assert to_its_end or len(text) == 8000


def test_cuts_put_together_are_the_text():
    rng = np.random.default_rng(1)
    text = "def f(x):\n    return x\n"
    cuts = {cut(text, rng) for _ in range(500)}
    assert len(cuts) > 100 and all(prefix + middle + suffix == text for prefix, suffix, middle in cuts)
    assert cut("", rng) == ("", "", "")


def test_quotas_scale_to_the_tokens_and_name_missing_sources():
    assert quotas({"a": 1, "b": 3}, 1000, {"a", "b", "c"}) == {"a": 250, "b": 750}
    with pytest.raises(UserError, match="the mix names d, of which no document is left"):
        quotas({"a": 1, "d": 1}, 10, {"a"})
    with pytest.raises(UserError, match="must not all be zero"):
        quotas({"a": 0}, 10, {"a"})


def test_passes_visit_everything_once_an_epoch():
    seen = list(islice(passes(7, np.random.default_rng(0)), 21))
    for epoch in range(3):
        assert sorted(index for number, index in seen if number == epoch) == list(range(7))
    assert [i for e, i in seen if e == 0] != [i for e, i in seen if e == 1]
