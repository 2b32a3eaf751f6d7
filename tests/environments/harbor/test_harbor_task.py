"""Task folders: the good one is read whole; each malformed one gives a sentence, the others go on."""

import os

import pytest

from environments.harbor.config import read_config
from environments.harbor.task import load_task, load_tasks
from pipeline.errors import UserError

SEPARATE = "[verifier]\nenvironment_mode = 'separate'\n"


def test_a_task_is_read_whole(write_task):
    folder = write_task()
    task = load_task(folder)
    assert task.name == "miniature/total"
    assert task.instruction.startswith("The folder /app holds numbers.txt")
    assert task.config.verifier.separate and task.config.verifier.timeout_sec == 30
    assert task.config.artifact_paths()[0].source == "/app"
    assert (task.limits.memory_mb, task.limits.disk_mb, task.limits.cpus) == (512, 64, 1.0)
    assert task.environment == folder / "environment" and task.solution == folder / "solution"


def test_the_digest_follows_content_and_modes_alone(write_task):
    first, second = write_task("first"), write_task("second")
    digest = load_task(first).digest
    assert load_task(second).digest == digest
    (second / "tests/test.sh").chmod(0o755)
    assert load_task(second).digest != digest
    (first / "tests/extra.txt").write_text("")
    assert load_task(first).digest != digest


def test_older_files_and_deprecated_keys_are_understood():
    config = read_config(
        'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "1536M"\nallow_internet = false\n',
        "task.toml",
    )
    assert config.schema_version == "1.0" and config.task is None
    assert (config.environment.memory_mb, config.environment.storage_mb) == (2048, 1536)
    assert config.environment.network_mode == "no-network"
    assert not config.verifier.separate
    assert read_config("[verifier.environment]\ncpus = 2\n", "task.toml").verifier.separate


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agent]\ntimeout_secs = 5", r"unknown key 'agent.timeout_secs', did you mean 'timeout_sec'\?"),
        ("[verifer]\nx = 1", r"unknown key 'verifer', did you mean 'verifier'\?"),
        ("[agent]\nzzz = 5", r"unknown key 'agent.zzz' \(known: .*timeout_sec"),
        ("[[verifier.collect]]\ncomand = 'x'", "'verifier.collect.0.comand', did you mean 'command'"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec is nan, give a finite number"),
        ("[verifier]\ntimeout_sec = inf", "verifier.timeout_sec is inf, give a finite number"),
        ("[metadata]\nweights = [1.0, nan]", "metadata.weights.1 is nan, give a finite number"),
        ("[agent]\ntimeout_sec = -3", "agent.timeout_sec: Input should be greater than 0"),
        ("[environment]\nmemory_mb = -1", "environment.memory_mb: Input should be greater than 0"),
        ("[environment]\ncpus = true", "environment.cpus: Input should be a valid number"),
        ("[environment]\nmemory = '2 bits'", "memory must be a size such as '1G'"),
        ("[environment]\nmemory = '1G'\nmemory_mb = 5", "memory and memory_mb disagree"),
        ("[task]\nname = 'noslash'", "'noslash' is not of the form organisation/name"),
        ("schema_version = '9.9'", "schema_version: Input should be '1.0', "),
        ("[verifier]\nenvironment_mode = 'both'", "verifier.environment_mode: Input should be 'shared'"),
        ("[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\n", "'shared' contradicts the"),
        ("artifacts = ['../etc']\n[agent]\nallowed_hosts = ['a.b']", "allowed_hosts needs network_mode"),
        ("[[artifacts]]\nsource = '/a/../../etc'", "leads upwards"),
        ("a = \n", "is not valid TOML"),
    ],
)  # fmt: skip
def test_a_bad_task_toml_is_refused_in_one_sentence(write_task, text, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        load_task(write_task(changes={"task.toml": text}))
    assert "task.toml" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task.toml": None}, "task.toml is missing"),
        ({"instruction.md": None}, "instruction.md is missing"),
        ({"environment/Dockerfile": None}, "environment/Dockerfile is missing"),
        ({"tests/test.sh": None}, "tests/test.sh is missing"),
        ({"tests/test.sh": ""}, "test.sh is empty"),
        ({"instruction.md": " \n\t\n"}, "instruction.md is empty"),
        ({"instruction.md": b"caf\xe9"}, r"instruction.md is not UTF-8 \(byte 3\)"),
        ({"task.toml": b"\xff\xfe"}, "task.toml is not UTF-8"),
        ({"instruction.md": "a\0b"}, "holds a zero byte"),
        ({"instruction.md": "a" * 2_000_000}, "is longer than 1048576 bytes"),
        ({"environment/docker-compose.yaml": "services: {}"}, "compose.yaml is of Harbor but not run here"),
        ({"task.toml": "[[steps]]\nname = 'one'"}, "steps is of Harbor but not run here"),
        ({"task.toml": "[environment]\nos = 'Windows'"}, "os = 'windows' is of Harbor but not run here"),
        ({"task.toml": "[agent]\nuser = 'someone'"}, "agent.user is of Harbor but not run here"),
        ({"task.toml": "artifacts = ['/']"}, "the artifact / would reach /tests"),
        (
            {"task.toml": SEPARATE, "environment/Dockerfile": "FROM debian:bookworm\n"},
            "the whole root would be carried to the tests: name artifacts in task.toml, or a WORKDIR",
        ),
        ({"task.toml": f"{SEPARATE}[environment]\nworkdir = '/'\n"}, "the whole root would be carried"),
        ({"task.toml": "artifacts = ['/logs']"}, "the artifact /logs would reach /tests"),
        ({"task.toml": "artifacts = ['/tests/x']"}, "the artifact /tests/x would reach /tests"),
        ({"task.toml": "artifacts = ['out']"}, "'out' in task.toml is not an absolute path"),
    ],
)  # fmt: skip
def test_a_malformed_folder_is_refused_in_one_sentence(write_task, changes, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        load_task(write_task(changes=changes))
    assert "\n" not in str(error.value)


def test_nothing_leads_out_of_the_folder(write_task, tmp_path):
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    for number, target in enumerate((outside, "../../../secret.txt", "/etc/passwd")):
        folder = write_task(f"out{number}")
        (folder / "tests/data.txt").symlink_to(target)
        with pytest.raises(UserError, match="data.txt is a link that leads out of the task's folder"):
            load_task(folder)
    folder = write_task("dangling")
    (folder / "tests/data.txt").symlink_to("nowhere")
    with pytest.raises(UserError, match="is a link to nothing"):
        load_task(folder)
    folder = write_task("round")
    (folder / "tests/again").symlink_to("../tests")
    with pytest.raises(UserError, match="is a link to a folder"):
        load_task(folder)
    folder = write_task("pipe")
    os.mkfifo(folder / "tests/pipe")
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        load_task(folder)
    folder = write_task("inside")
    (folder / "tests/same.py").symlink_to("check.py")
    assert load_task(folder).name == "miniature/total"


def test_the_others_go_on(write_task, tmp_path):
    write_task("a")
    write_task("b", {"task.toml": "[agent]\ntimeout_sec = nan"})
    write_task("c", {"tests/test.sh": None})
    write_task("d")
    write_task("e", {"task.toml": '[task]\nname = "miniature/other"'})
    tasks, faults = load_tasks(tmp_path / "tasks")
    assert [task.folder.name for task in tasks] == ["a", "e"]
    assert len(faults) == 3
    assert "timeout_sec is nan" in faults[0] and "test.sh is missing" in faults[1]
    assert "the name miniature/total is that of" in faults[2]
    with pytest.raises(UserError, match="is not a folder"):
        load_tasks(tmp_path / "nowhere")
