"""Numbers that ``glm5`` is given: what is out of range is one sentence, not a traceback."""

import pytest


@pytest.mark.parametrize("command", ["pipeline", "mlflow"])
@pytest.mark.parametrize("port", ["99999", "65536", "0", "-1", "4_200", "many"])
def test_a_port_out_of_range(bare, glm5, command, port):
    done = glm5(bare, command, "--port", port)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == (
        f"glm5 {command}: error: argument --port: {port!r} is not a whole number from 1 to 65535"
    )
    assert not (bare / ".prefect").exists()


@pytest.mark.parametrize("devices", ["0", "-2", "1.5"])
def test_explain_needs_a_device(bare, glm5, devices):
    done = glm5(bare, "explain", "--device", "h200", "--devices", devices)
    assert done.returncode == 2 and "Traceback" not in done.stdout
    assert f"argument --devices: {devices!r} is not a whole number from 1 to" in done.stdout


def test_explain_counts_devices(bare, glm5):
    one, two = (glm5(bare, "explain", "--device", "h200", "--devices", number) for number in "12")
    assert (one.returncode, two.returncode) == (0, 0), one.stdout + two.stdout
    assert "1 x h200" in one.stdout and "2 x h200" in two.stdout
