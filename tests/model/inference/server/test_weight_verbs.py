"""Pause, load weights of another version, resume: with answers under way, as reinforcement learning does."""

import json
import shutil
import threading

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.waiting import PATIENCE, wait_until

MANY = 1200  # tokens: enough to be interrupted, and within the context


@pytest.fixture
def served(start_server):
    """A server of this test's own."""
    return start_server()


@pytest.fixture
def http(served):
    with httpx.Client(base_url=served.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def other_weights(folders, tmp_path):
    """The speaker's checkpoint with another head, so that it says something else."""
    folder = tmp_path / "other"
    shutil.copytree(folders["speaker"], folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].roll(1, 0)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_an_answer_goes_on_with_new_weights(served, http, other_weights):
    body = {"prompt": "hello", "max_tokens": MANY, "temperature": 0, "stream": True}
    versions: list[int] = []
    ids: list[int] = []

    def read() -> None:
        with http.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    [choice] = json.loads(line.removeprefix("data: "))["choices"]
                    versions.extend(choice["weight_versions"])
                    ids.extend(choice["token_ids"])

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: len(versions) >= 20, "the first tokens", pause=0.005)
    assert http.post("/pause").json() == {"paused": True, "version": 0}
    paused_at = int(served.metric("glm5_engine_sampled_tokens"))  # some may still be on their way
    assert paused_at < MANY
    loaded = http.post("/load_weights", json={"folder": str(other_weights), "version": 7})
    assert loaded.status_code == 200 and loaded.json()["version"] == 7
    assert http.post("/resume").json() == {"paused": False, "version": 7}
    reader.join(PATIENCE)
    assert versions == [0] * paused_at + [7] * (MANY - paused_at)

    # The new weights speak: the same start, then another token after each.
    old = http.post("/v1/completions", json={**body, "stream": False, "max_tokens": 3}).json()["choices"][0]
    assert old["weight_versions"] == [7, 7, 7] and old["token_ids"] != ids[:3]
    assert http.get("/health").json()["version"] == 7


def test_weights_that_do_not_fit_change_nothing(http, folders, tmp_path):
    body = {"prompt": "hello", "max_tokens": 5, "temperature": 0}
    before = http.post("/v1/completions", json=body).json()["choices"][0]["token_ids"]
    damaged = tmp_path / "damaged"
    shutil.copytree(folders["speaker"], damaged)
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:-100])
    for request in (
        {"folder": str(tmp_path / "nowhere"), "version": 1},
        {"folder": str(damaged), "version": 1},
        {"folder": str(folders["speaker"]), "version": 1, "checksum": "0" * 64},
    ):
        answer = http.post("/load_weights", json=request)
        assert answer.status_code == 422 and answer.json()["error"]["message"], answer.text
        assert "Errno" not in answer.text
        if "nowhere" in request["folder"]:
            assert answer.json()["error"]["message"] == (
                f"The weights were not loaded: {tmp_path / 'nowhere'} is no checkpoint folder: "
                "it has no config.json"
            )
    after = http.post("/v1/completions", json=body).json()["choices"][0]
    assert after["token_ids"] == before and after["weight_versions"] == [0] * 5


def test_another_checkpoint_waits_for_running_answers(http):
    """Requests that name the two checkpoints by turns all get what they asked for."""
    answers: dict[int, dict] = {}

    def ask(number: int) -> None:
        body = {
            "model": ("speaker", "caller")[number % 2],
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0,
        }
        answers[number] = httpx.post(
            f"{http.base_url}/v1/chat/completions", json=body, timeout=PATIENCE
        ).json()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.keys() == set(range(8))
    for number, answer in answers.items():
        assert answer["model"] == ("speaker", "caller")[number % 2]
        assert bool(answer["choices"][0]["message"].get("tool_calls")) == (number % 2 == 1), answer
