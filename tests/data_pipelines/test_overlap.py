"""Runs of words, near-duplicates and decontamination against what a plain set would say."""

import random
import sysconfig
from pathlib import Path

import numpy as np

from data_pipelines import decontamination
from data_pipelines.curate import KEPT, decide
from data_pipelines.decontamination import Index, rare_places
from data_pipelines.duplicates import NearDuplicates, Sketcher
from data_pipelines.examination import examine
from data_pipelines.heldout import Outline, choose_heldout
from data_pipelines.ngrams import contained, ngram_hashes, word_hashes
from pipeline.recipe.data import CurateSection
from tests.data_pipelines.conftest import document

STDLIB = Path(sysconfig.get_path("stdlib"))


def words(rng: random.Random, count: int, vocabulary: int = 5000) -> str:
    letters = str.maketrans("0123456789", "abcdefghij")
    return " ".join(f"w{rng.randrange(vocabulary)}".translate(letters) for _ in range(count))


def test_hashes_are_equal_exactly_where_the_words_are():
    rng = random.Random(1)
    text = words(rng, 3000, vocabulary=6)
    for n in (1, 3, 5):
        tokens = text.split(" ")
        runs = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
        hashes = ngram_hashes(word_hashes(text), n).tolist()
        assert len(set(zip(runs, hashes, strict=True))) == len(set(runs)) == len(set(hashes))


def test_layout_and_case_do_not_matter_and_order_does():
    assert (word_hashes("Return x,\n\ty") == word_hashes("return (X) y")).all()
    first, second = (ngram_hashes(word_hashes(text), 2) for text in ("a b", "b a"))
    assert first != second
    assert len(ngram_hashes(word_hashes("a b"), 3)) == 0


def test_word_hashes_are_fixed():
    """A stored index of n-grams must mean the same on another machine and another day."""
    assert word_hashes("return").tolist() == [166712603271491781]


def test_contained_is_set_membership():
    rng = np.random.default_rng(2)
    index = np.unique(rng.integers(0, 500, 100, dtype=np.uint64))
    hashes = rng.integers(0, 500, 1000, dtype=np.uint64)
    assert contained(hashes, index).tolist() == [value in set(index.tolist()) for value in hashes.tolist()]
    assert not contained(hashes, np.empty(0, np.uint64)).any()


def test_sketches_estimate_the_jaccard_index():
    rng = random.Random(3)
    sketcher = Sketcher(256)
    for keep in (0.95, 0.8, 0.5):
        left = words(rng, 2000).split()
        right = left[: int(keep * 2000)] + words(rng, 2000 - int(keep * 2000)).split()
        runs = [set(ngram_hashes(word_hashes(" ".join(side)), 5).tolist()) for side in (left, right)]
        exact = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
        sketches = [sketcher.sketch(word_hashes(" ".join(side))) for side in (left, right)]
        assert (
            abs(np.mean(sketches[0] == sketches[1]) - exact) < 5 * (exact * (1 - exact) / 256) ** 0.5 + 0.01
        )


def test_near_duplicates_are_found_and_others_are_not():
    rng = random.Random(4)
    sketcher, near = Sketcher(64), NearDuplicates(64, 0.8)
    texts = [words(rng, 1500) for _ in range(40)]
    for number, text in enumerate(texts):
        near.add(f"d{number:02}", sketcher.sketch(word_hashes(text)))
    changed = texts[7].split()
    changed[700:710] = words(rng, 10).split()
    name, similarity = near.find(sketcher.sketch(word_hashes(" ".join(changed))))
    assert name == "d07" and similarity >= 0.8
    assert near.find(sketcher.sketch(word_hashes(words(rng, 1500)))) is None
    assert near.find(sketcher.sketch(word_hashes(texts[3])))[0] == "d03"


def _decide(documents, heldout, items=()):
    section = CurateSection(min_characters=10)
    runs = [ngram_hashes(word_hashes(text), 13) for text in [*(h.text for h in heldout), *items]]
    everything = np.unique(np.concatenate(runs)) if runs else np.empty(0, np.uint64)
    of_items = [ngram_hashes(word_hashes(text), 13) for text in items]
    index = Index(everything, np.unique(np.concatenate(of_items)) if items else np.empty(0, np.uint64))
    findings = [examine(d, index, section, Sketcher(64)) for d in documents]
    return [reason for reason, _ in decide(findings, heldout, index, section)]


def _module(name: str) -> str:
    return (STDLIB / name).read_text()


def test_reasons_in_their_order():
    heldout = document(_module("heapq.py"), "heldout.py")
    near_heldout = _module("heapq.py").replace("heapify", "arrange")
    task = "take the seven red stones from the old box and put them on the wide shelf"
    documents = [
        document(_module("bisect.py"), "1.py"),
        document(_module("bisect.py"), "2.py"),
        document(_module("heapq.py"), "3.py"),
        document(near_heldout, "4.py"),
        document(_module("textwrap.py") + f"\n# {task}\n", "5.py"),
        document(_module("textwrap.py"), "6.py"),
        document(_module("textwrap.py").replace("TextWrapper", "Wrapper", 1), "7.py"),
        document("def f(:\n" * 20, "8.py"),
    ]
    assert _decide(documents, [heldout], [task]) == [
        KEPT, "exact duplicate", "held out for evaluation", "overlaps a held-out document",
        "holds an evaluation task", KEPT, "near-duplicate", "quality: does not parse",
    ]  # fmt: skip


def test_records_of_one_file_are_compared_each():
    near_first = _module("bisect.py").replace("bisect_right", "bisect_upper", 1)
    texts = [_module("bisect.py"), _module("textwrap.py"), near_first]
    nothing = [document(_module("heapq.py"), "heldout.py")]
    assert _decide([document(text, "all.jsonl") for text in texts], nothing) == [KEPT, KEPT, "near-duplicate"]


def test_a_shared_licence_header_costs_no_document():
    rng = random.Random(5)
    header = "# " + words(rng, 120).replace(" w", "\n# w")
    bodies = [f"\n\ndef f(x):\n    '''{words(rng, 40)}'''\n    y = x\n    return y\n" for _ in range(12)]
    documents = [document(header + body, f"{number}.py") for number, body in enumerate(bodies)]
    assert _decide(documents, documents[:1])[1:] == [KEPT] * 11
    few = documents[: decontamination.BOILERPLATE - 2]
    assert KEPT not in _decide(few, few[:1])


def test_rare_runs_are_counted_by_document():
    overlap = decontamination.Overlap(5, 0, np.array([0, 2], np.int32))
    rare = rare_places([overlap] * decontamination.BOILERPLATE, 3)
    assert rare.tolist() == [False, True, False]


def _outlines(packages: int, per_package: int) -> list[Outline]:
    return [
        Outline(f"{p}.{n}", "s", f"p{p}", f"{n}.py", 100) for p in range(packages) for n in range(per_package)
    ]


def test_whole_packages_are_held_out_where_there_are_many():
    outlines = _outlines(100, 5)
    chosen = choose_heldout(outlines, 0.05, 0)
    assert len(chosen) == 25
    assert len({name.split(".")[0] for name in chosen}) == 5
    assert choose_heldout(reversed(outlines), 0.05, 0) == chosen != choose_heldout(outlines, 0.05, 1)


def test_documents_are_held_out_where_packages_are_few():
    chosen = choose_heldout(_outlines(3, 50), 0.1, 0)
    assert len(chosen) == 15
    assert len({name.split(".")[0] for name in chosen}) == 3  # of every package some
    assert choose_heldout(_outlines(1, 1), 0.1, 0) == set()
