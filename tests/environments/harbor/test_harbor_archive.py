"""Archives: a good one is unpacked as it is; one that leads outside, or grows, is refused or loses it."""

import gzip
import io
import os
import stat
import tarfile
import zipfile

import pytest

from environments.harbor import archive
from environments.harbor.archive import unpack_task, unpack_work
from environments.harbor.task import load_tasks
from pipeline.errors import UserError


def member(
    name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644
):
    item = tarfile.TarInfo(name)
    item.size, item.type, item.linkname, item.mode = len(content), kind, target, mode
    if kind != tarfile.REGTYPE:
        item.size = 0
    return item, content


def tar(*members) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for item, content in members:
            made.addfile(item, io.BytesIO(content))
    return file.getvalue()


def link(name: str, target: str):
    return member(name, kind=tarfile.SYMTYPE, target=target)


OUTSIDE = [
    ((member("../evil"),), "leads out of the folder"),
    ((member("a/../../evil"),), "leads out of the folder"),
    ((member("/etc/evil"),), "absolute name"),
    ((link("a", "/etc/passwd"),), "leads out of the folder"),
    ((link("a", ".."),), "leads out of the folder"),
    ((link("a/b", "c/../../.."),), "leads out of the folder"),
    ((link("a", "b"), member("a/evil")), "a"),
    ((link("a/x", "../b"), link("a/x/y", "../../evil"), member("b/c")), "leads out of the folder"),
    ((member("dev", kind=tarfile.CHRTYPE),), "neither a file nor a folder"),
    ((member("pipe", kind=tarfile.FIFOTYPE),), "neither a file nor a folder"),
    ((member("a"), member("hard", kind=tarfile.LNKTYPE, target="a")), "neither a file nor a folder"),
]


@pytest.mark.parametrize(("members", "sentence"), OUTSIDE)
def test_what_leads_outside_is_refused_in_a_task_and_left_out_of_work(tmp_path, members, sentence):
    packed = tmp_path / "task.tar"
    packed.write_bytes(tar(*members, member("good.txt", b"good")))
    with pytest.raises(UserError) as error:
        unpack_task(packed, tmp_path / "task")
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert unpack_work(packed.read_bytes(), tmp_path / "work", "/app") >= 1
    assert (tmp_path / "work/good.txt").read_bytes() == b"good"
    inside = {path.name for path in tmp_path.iterdir()}
    assert inside == {"task.tar", "task", "work"}
    for directory, folders, files in os.walk(tmp_path / "work"):
        for name in folders + files:
            assert os.path.realpath(os.path.join(directory, name)).startswith(str(tmp_path / "work"))


def test_good_archives_keep_content_links_and_execution(tmp_path, write_task):
    folder = write_task()
    (folder / "tests/same.py").symlink_to("check.py")
    (folder / "tests/test.sh").chmod(0o755)
    for name in ("tasks.tar", "tasks.tar.gz", "tasks.tar.xz", "tasks.tar.bz2"):
        with tarfile.open(tmp_path / name, "w:" + name[10:]) as made:
            made.add(folder, "total")
        unpack_task(tmp_path / name, tmp_path / f"of {name}")
        tasks, faults = load_tasks(tmp_path / f"of {name}")
        assert [task.name for task in tasks] == ["miniature/total"] and not faults
        assert (tasks[0].tests / "same.py").readlink().name == "check.py"
        assert os.access(tasks[0].tests / "test.sh", os.X_OK)
    with zipfile.ZipFile(tmp_path / "tasks.zip", "w") as made:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                made.write(path, f"total/{path.relative_to(folder)}")
    unpack_task(tmp_path / "tasks.zip", tmp_path / "of zip")
    assert load_tasks(tmp_path / "of zip")[0][0].instruction.startswith("The folder /app")


def test_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_BYTES", 2**20)
    monkeypatch.setattr(archive, "MAX_ENTRIES", 100)
    big, many = tar(member("big", bytes(2**21))), tar(*(member(str(number)) for number in range(101)))
    with zipfile.ZipFile(tmp_path / "big.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("big", bytes(2**21))
    (tmp_path / "big.tar").write_bytes(big)
    (tmp_path / "big.tar.gz").write_bytes(gzip.compress(big))
    (tmp_path / "many.tar").write_bytes(many)
    for name in ("big.zip", "big.tar", "big.tar.gz"):
        with pytest.raises(UserError, match="holds more than 1 MB"):
            unpack_task(tmp_path / name, tmp_path / f"of {name}")
    with pytest.raises(UserError, match="holds more than 100 entries"):
        unpack_task(tmp_path / "many.tar", tmp_path / "of many")
    assert unpack_work(big, tmp_path / "work", "/app") == 1
    with pytest.raises(ValueError, match="more than 100 entries"):
        unpack_work(many, tmp_path / "work2", "/app")


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"PK\x03\x04 no zip", gzip.compress(b"no tar", mtime=0)]
)
def test_what_is_no_archive_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match="is not an archive that can be read"):
        unpack_task(tmp_path / "file", tmp_path / "task")
    with pytest.raises(ValueError, match="no archive"):
        unpack_work(content, tmp_path / "work", "/app")


def test_zip_names_are_held_to_the_same(tmp_path):
    for name in ("../evil", "/etc/evil", "C:/evil", "a\\..\\evil"):
        with zipfile.ZipFile(tmp_path / "evil.zip", "w") as made:
            made.writestr(name, "x")
        with pytest.raises(UserError, match="it is not unpacked"):
            unpack_task(tmp_path / "evil.zip", tmp_path / "task")
    item = zipfile.ZipInfo("link")
    item.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as made:
        made.writestr(item, "/etc/passwd")
    with pytest.raises(UserError, match="neither a file nor a folder"):
        unpack_task(tmp_path / "link.zip", tmp_path / "task")


def test_absolute_links_inside_the_work_stay(tmp_path):
    packed = tar(member("data/a.txt", b"a"), link("./sub/a", "/app/data/a.txt"), link("b", "/app/../tests/b"))
    assert unpack_work(packed, tmp_path / "work", "/app") == 1
    assert (tmp_path / "work/sub/a").read_bytes() == b"a"
    assert os.readlink(tmp_path / "work/sub/a") == "../data/a.txt"
    assert not os.path.lexists(tmp_path / "work/b")


def test_modes_of_work_are_kept_but_no_set_user_bits(tmp_path):
    packed = tar(
        member("open", kind=tarfile.DIRTYPE, mode=0o1777),
        member("open/tool", mode=0o4755),
        member("open/secret", mode=0o640),
        member("closed", kind=tarfile.DIRTYPE, mode=0o555),
        member("closed/none", mode=0o000),
    )
    assert unpack_work(packed, tmp_path / "work", "/app") == 0
    found = {
        path.relative_to(tmp_path / "work").as_posix(): oct(stat.S_IMODE(path.stat().st_mode))
        for path in (tmp_path / "work").rglob("*")
    }
    assert found == {
        "open": "0o777", "open/tool": "0o755", "open/secret": "0o640", "closed": "0o755",
        "closed/none": "0o400",
    }  # fmt: skip
