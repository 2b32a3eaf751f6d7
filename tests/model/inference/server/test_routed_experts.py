"""The experts of every token over HTTP, as the engine of this process routes them."""

import base64
import json

import httpx
import numpy as np
import pytest

from model.hub import load_folder
from model.inference.engine import Engine
from model.inference.request import SamplingParams
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def url(start_server):
    return start_server("--record-experts").url


def experts_of(choice):
    packed = choice["routed_experts"]
    return np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"]).reshape(packed["shape"])


@pytest.mark.parametrize("stream", [False, True])
def test_experts_come_with_the_end_of_a_choice(url, folders, tokenizer, stream):
    prompt = [3, 4, 5, 6]
    body = {
        "prompt": prompt,
        "max_tokens": 9,
        "temperature": 0,
        "return_routed_experts": True,
        "stream": stream,
    }
    engine = Engine(load_folder(folders["speaker"]), record_experts=True)
    (expected,) = engine.generate([prompt], SamplingParams(9, 0.0, stop_ids=tokenizer.stop_ids))
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    if stream:
        (line,) = [line for line in answer.text.splitlines() if "routed_experts" in line]
        (choice,) = json.loads(line.removeprefix("data: "))["choices"]
    else:
        (choice,) = answer.json()["choices"]
        assert choice["token_ids"] == expected.ids
    assert (experts_of(choice) == expected.experts).all()


def test_a_server_that_does_not_record_says_so(start_server):
    body = {"prompt": [3], "max_tokens": 1, "return_routed_experts": True}
    answer = httpx.post(f"{start_server().url}/v1/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 422 and "--record-experts" in answer.text
