"""What ``glm5`` is given: numbers out of range and unknown names are one sentence, not a traceback."""

import re
import shutil
import socket
import subprocess

import pytest
import yaml

from pipeline.recipe import load_recipe
from tests.flows.conftest import REPOSITORY
from tests.waiting import PATIENCE, free_port


@pytest.mark.parametrize("command", ["pipeline", "mlflow"])
@pytest.mark.parametrize("port", ["99999", "65536", "0", "-1", "4_200", "many"])
def test_a_port_out_of_range(bare, glm5, command, port):
    done = glm5(bare, command, "--port", port)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == (
        f"glm5 {command}: error: argument --port: {port!r} is not a whole number from 1 to 65535"
    )
    assert not (bare / ".prefect").exists()


def test_mlflow_on_a_port_that_is_taken(bare, glm5):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = glm5(bare, "mlflow", "--port", str(port))
    sentence = f"error: port {port} of 127.0.0.1 is taken by another program: end it, or choose another"
    assert done.returncode == 1
    assert done.stdout.startswith(sentence) and done.stdout.count("\n") == 1, done.stdout


def refused_store(done, path, reason) -> bool:
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith(f"error: MLflow cannot use {path} ({reason}): mend that, or set"), (
        done.stdout
    )
    return done.stdout.count("\n") == 1


def test_mlflow_where_its_database_cannot_be_made(bare, glm5):
    port, path = str(free_port()), bare / "runs/mlflow.db"
    path.mkdir(parents=True)
    assert refused_store(glm5(bare, "mlflow", "--port", port), path, "unable to open database file")
    shutil.rmtree(bare / "runs")
    (bare / "runs").write_text("")
    assert refused_store(glm5(bare, "mlflow", "--port", port), path, "File exists")


def test_mlflow_on_a_disk_that_is_read_only(bare, glm5, mount_disk):
    disk = mount_disk("64k")
    (disk / "runs").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True, timeout=PATIENCE)
    done = glm5(bare, "mlflow", "--port", str(free_port()), GLM5_ROOT=str(disk))
    assert refused_store(done, disk / "runs/mlflow.db", "Read-only file system")


@pytest.mark.parametrize("devices", ["0", "-2", "1.5"])
def test_explain_needs_a_device(bare, glm5, devices):
    done = glm5(bare, "explain", "--device", "h200", "--devices", devices)
    assert done.returncode == 2 and "Traceback" not in done.stdout
    assert f"argument --devices: {devices!r} is not a whole number from 1 to" in done.stdout


def test_explain_counts_devices(bare, glm5):
    one, two = (glm5(bare, "explain", "--device", "h200", "--devices", number) for number in "12")
    assert (one.returncode, two.returncode) == (0, 0), one.stdout + two.stdout
    assert "1 x h200" in one.stdout and "2 x h200" in two.stdout


def test_explain_tells_the_sizes_that_quantize_will_report(bare, glm5):
    size = pytest.importorskip("model.quantization.size")
    scheme = pytest.importorskip("model.quantization.scheme")
    done = glm5(bare, "explain")
    assert done.returncode == 0, done.stdout
    line = re.compile(
        r"^quantize    (\w+): ([\d,]+) bytes of tensors, ([\d.]+) of its parent's", re.MULTILINE
    )
    config = load_recipe("tiny").model.config()
    parent = size.stored_bytes(config, float_bytes=4)
    found = line.findall(done.stdout)
    assert [name for name, *_ in found] == ["w4a8", "w8a8"]
    for (_, number, share), bits in zip(found, (4, 8), strict=True):
        expected = size.stored_bytes(config, scheme.Scheme(expert_bits=bits), float_bytes=4)
        assert int(number.replace(",", "")) == expected
        assert float(share) == pytest.approx(expected / parent, abs=0.005)


@pytest.fixture
def refused(bare, glm5):
    """``refused(command, section=...)``: the sentence that a changed recipe gets; nothing else is done."""
    shutil.copy(REPOSITORY / "dvc.yaml", bare / "dvc.yaml")

    def refuse(command: str, **changes) -> str:
        (bare / "recipes/mine.yaml").write_text(yaml.safe_dump({"extends": "tiny", **changes}))
        done = glm5(bare, command, "--recipe", "mine")
        assert done.returncode == 1 and done.stdout.count("\n") == 1, done.stdout
        assert not any((bare / folder).exists() for folder in ("artifacts", "runs", ".prefect"))
        return done.stdout

    return refuse


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("string/copi", "environment string has no family 'copi' (known: copy, "),
        ("strings/copy", "there is no environment 'strings' in "),
        ("string", "environment string has no family ''"),
        ("table/min", "table/min is kept for evaluation"),
    ],
)
def test_a_family_that_nothing_makes_chats_of(refused, family, reason):
    found = refused("explain", sft_data={"families": {"lookup/code": 1.0, family: 1.0}})
    assert found.startswith(f"error: recipe mine: sft_data.families names {family!r}: {reason}")


def test_tasks_and_evaluation_of_what_is_not_there(refused):
    families = [*load_recipe("tiny").rl_tasks.families, "tools/chains"]
    assert "rl_tasks.families names 'tools/chains': " in refused("explain", rl_tasks={"families": families})
    found = refused("explain", eval_sets={"environments": ["code", "codes"]})
    assert "eval_sets.environments names 'codes': there is no environment 'codes'" in found


@pytest.mark.parametrize("command", ["run", "pipeline"])
def test_a_run_does_not_start_with_an_unknown_family(refused, command):
    found = refused(command, sft_data={"families": {"string/copi": 1.0}})
    assert "sft_data.families names 'string/copi'" in found
