import random
from functools import partial

from data_pipelines.sources.files import Notes, SourceFile, Unusable
from data_pipelines.sources.selection import fair_share, take
from tests.data_pipelines.conftest import document


def _file(path: str, size: int) -> SourceFile:
    package = path.split("/")[0]

    def read():
        yield document("x" * size, path, package=package)

    return SourceFile(path, package, size, read)


def test_small_packages_are_whole_and_large_ones_equal():
    assert fair_share([1, 1, 10, 10], 12) == 5
    assert fair_share([1, 2], 5) == float("inf")
    assert fair_share([8, 8], None) == float("inf")
    assert fair_share([4, 4, 4], 6) == 2


def test_shares_use_the_whole_limit():
    rng = random.Random(1)
    for _ in range(200):
        sizes = [rng.randint(1, 50) for _ in range(rng.randint(1, 12))]
        limit = rng.randint(1, sum(sizes))
        share = fair_share(sizes, limit)
        assert abs(sum(min(size, share) for size in sizes) - limit) < 1e-6


def test_order_depends_on_seed_and_names_alone():
    files = [_file(f"p{n % 7}/m{n % 3}/f{n}.py", 1000) for n in range(80)]
    first = [d.path for d in take(files, 0.03, 0, Notes())]
    random.Random(2).shuffle(files)
    assert [d.path for d in take(files, 0.03, 0, Notes())] == first
    assert [d.path for d in take(files, 0.03, 1, Notes())] != first
    assert 28 <= len(first) <= 32
    assert len({path.split("/")[0] for path in first}) == 7


def test_a_folder_is_taken_before_the_next_begins():
    files = [_file(f"p/m{n % 4}/f{n}.py", 1000) for n in range(40)] + [_file("q/a.py", 1000)]
    folders = [d.path.split("/")[1] for d in take(files, 0.026, 0, Notes()) if d.package == "p"]
    assert len(set(folders)) == 3
    assert sorted(folders, key=folders.index) == folders


def test_what_cannot_be_read_is_counted_and_named():
    def bad(name):
        raise Unusable("it is odd")
        yield

    files = [SourceFile(f"p/{n}", "p", 10, partial(bad, n)) for n in range(9)] + [_file("p/good.py", 10)]
    notes = Notes()
    assert [d.path for d in take(files, None, 0, notes)] == ["p/good.py"]
    assert notes.skipped["it is odd"]["files"] == 9 and len(notes.skipped["it is odd"]["examples"]) == 5
    assert "skipped 9, because it is odd: p/0" in notes.sentences("s")[0]
