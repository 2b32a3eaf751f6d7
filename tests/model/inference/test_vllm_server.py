"""vLLM's real server, from the environment of ``make vllm``: tokens, log-probs and verbs as of our engine.

One server for all tests; each loads the weights that it needs. GLM5_VLLM_PYTHON names another environment's
Python.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from model.chat.renderer import render
from model.chat.tokenizer import Tokenizer
from model.hub import save_folder
from model.inference.engine import Engine
from model.inference.generate import score
from model.inference.request import SamplingParams
from model.inference.vllm.client import StaleWeights, VllmClient
from model.inference.vllm.process import PYTHON, ROOT, serving
from model.inference.weights import checksum
from tests.waiting import PATIENCE, wait_until

sys.path.append(str(Path(__file__).parent / "server"))
sys.path.append(str(Path(__file__).parents[1] / "chat"))

from reciting_model import CONTENT, REASONING, TOOLS, make_checkpoint, reciting_config
from small_tokenizer import train_tokenizer

ENVIRONMENT = Path(os.environ.get("GLM5_VLLM_PYTHON", PYTHON))
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(4 * PATIENCE),
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason="no environment with vLLM: `make vllm`"),
]
CONTEXT = 512  # index_top_k: sparse attention selects every key up to there
SHAPE = dict(kv_latent=512, qk_rope_dim=64, index_dim=64, index_top_k=CONTEXT)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folders = {}
    for name in ("speaker", "caller", "random", "other"):
        folders[name] = tmp_path_factory.mktemp(name)
        train_tokenizer(folders[name], tags_are_special=False)
        make_checkpoint(folders[name], "caller" if name == "caller" else "speaker", **SHAPE)
    return folders


@pytest.fixture(scope="module")
def client(folders):
    with serving(folders["speaker"], "--threads", "1", python=ENVIRONMENT) as url:
        client = VllmClient(url)
        yield client
        client.close()


@pytest.fixture
def models(folders, make_model):
    """Two models that differ in everything, with their folders."""
    tokenizer = Tokenizer.load(folders["speaker"])
    pairs = []
    for seed, name in enumerate(("random", "other"), 1):
        model = make_model(reciting_config(tokenizer, **SHAPE), seed, indexer=True).eval()
        save_folder(model, folders[name])
        pairs.append((model, folders[name]))
    return pairs


def rows(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 400, rng.integers(1, longest)).tolist() for _ in range(count)]


def sampled_tokens(client: VllmClient) -> float:
    """How many tokens the server has sampled since it started."""
    lines = httpx.get(f"{client.url}/metrics", timeout=PATIENCE).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def test_greedy_tokens_and_log_probs_are_our_engines(client, models):
    model, folder = models[0]
    client.load_weights(folder, 1, checksum(model.state_dict()))
    prompts = rows(12, 100)
    params = SamplingParams(max_new_tokens=20, temperature=0, top_logprobs=2, prompt_logprobs=True)
    ours, theirs = Engine(model).generate(prompts, params), client.generate(prompts, params)
    for a, b in zip(ours, theirs, strict=True):
        assert a.ids == b.ids and a.finish == b.finish == "length"
        values = [[t.logprob for t in [*c.prompt, *c.tokens]] for c in (a, b)]
        assert values[0] == pytest.approx(values[1], abs=2e-4)
        assert [t.top[0][0] for t in a.tokens] == [t.top[0][0] for t in b.tokens]


def test_samples_are_the_trainers_and_a_seed_fixes_them(client, models):
    model, folder = models[0]
    client.load_weights(folder, 2)
    prompts = rows(16, 60, seed=1)
    params = SamplingParams(max_new_tokens=30, temperature=0.8, seed=7)
    first, again = client.generate(prompts, params), client.generate(prompts, params)
    assert [c.ids for c in first] == [c.ids for c in again]
    recomputed = score(model, [p + c.ids for p, c in zip(prompts, first, strict=True)], attention="sparse")
    apart = np.concatenate(
        [
            own[-len(completion.tokens) :] - [token.logprob for token in completion.tokens]
            for own, completion in zip(recomputed, first, strict=True)
        ]
    )
    assert np.mean(np.exp(apart) - 1 - apart) < 1e-8  # the mismatch KL


def test_a_stop_token_ends_and_is_part_of_the_answer(client, models):
    _, folder = models[0]
    client.load_weights(folder, 3)
    [free] = client.generate([[5, 6, 7]], SamplingParams(max_new_tokens=12, temperature=0))
    stop = free.ids[5]
    [ended] = client.generate(
        [[5, 6, 7]], SamplingParams(max_new_tokens=12, temperature=0, stop_ids=frozenset({stop}))
    )
    assert ended.ids == free.ids[: free.ids.index(stop) + 1]
    assert (ended.finish, ended.stop) == ("stop", stop)


def test_every_update_is_whole_and_a_stale_engine_is_found(client, models):
    (model, folder), (other, other_folder) = models
    probes = rows(6, 80, seed=2)
    for version in (10, 12):
        assert client.push(folder, version, trainer=model, rows=probes) < 2e-5
        assert client.push(other_folder, version + 1, trainer=other, rows=probes) < 2e-5
        assert client.version == version + 1
        with pytest.raises(StaleWeights, match="nats from the trainer's"):
            client.check(model, probes)


def test_running_requests_go_on_with_the_new_weights(client, models):
    """Each token has the log-probability that the plain forward of its version gives it."""
    (model, folder), (other, other_folder) = models
    client.load_weights(folder, 20)
    prompts, done = rows(4, 30, seed=3), []
    params = SamplingParams(max_new_tokens=400, seed=11)
    running = threading.Thread(target=lambda: done.extend(client.generate(prompts, params)))
    before = sampled_tokens(client)
    running.start()
    wait_until(lambda: sampled_tokens(client) > before, "the first tokens")
    client.load_weights(other_folder, 21)
    running.join()
    both = {20: model, 21: other}
    versions = {token.version for completion in done for token in completion.tokens}
    assert versions == both.keys(), "the change came before or after all tokens: no request was under way"
    for prompt, completion in zip(prompts, done, strict=True):
        assert len(completion.tokens) == 400
        for version in {token.version for token in completion.tokens}:
            [own] = score(both[version], [prompt + completion.ids], attention="sparse")
            for value, token in zip(own[len(prompt) - 1 :], completion.tokens, strict=True):
                assert token.version != version or abs(value - token.logprob) < 2e-3


def test_while_paused_nothing_is_sampled(client, models):
    _, folder = models[0]
    client.load_weights(folder, 30)
    client.pause()
    done: list = []
    waiting = threading.Thread(
        target=lambda: done.extend(client.generate([[1, 2]], SamplingParams(max_new_tokens=2)))
    )
    waiting.start()
    client.load_weights(folder, 31)  # does not resume
    waiting.join(2)
    assert waiting.is_alive() and done == []
    client.resume()
    waiting.join(PATIENCE)
    assert [token.version for token in done[0].tokens] == [31, 31]


def test_weights_that_do_not_fit_change_nothing(client, models, folders, tmp_path, make_model):
    _, folder = models[0]
    client.load_weights(folder, 40)
    prompt, params = [[9, 8, 7]], SamplingParams(max_new_tokens=5, temperature=0)
    before = client.generate(prompt, params)
    larger = make_model(reciting_config(Tokenizer.load(folder), **SHAPE, num_layers=3), 1, indexer=True)
    save_folder(larger, tmp_path)
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="were not loaded"):
            client.load_weights(wrong, 41)
    with pytest.raises(ValueError, match="checksum is"):
        client.load_weights(folders["other"], 41, checksum="00")
    assert client.generate(prompt, params) == before and client.version == 40


def test_chats_are_read_as_ours_and_answered_in_parts(client, folders):
    tokenizer = Tokenizer.load(folders["speaker"])
    remote = openai.OpenAI(base_url=f"{client.url}/v1", api_key="none")
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "ferry"}'}}
    question = {"role": "user", "content": "add the left"}
    dialogue = [
        question,
        {"role": "assistant", "content": "", "reasoning_content": "think about", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    for version, name, messages in ((50, "speaker", [question]), (51, "caller", dialogue)):
        client.load_weights(folders[name], version)
        chat = remote.chat.completions.create(
            model="glm5", messages=messages, tools=TOOLS, temperature=0, max_tokens=60,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
        rendered = render(tokenizer, messages, tools=TOOLS, generation_prompt=True)
        assert chat.model_dump()["prompt_token_ids"] == list(rendered.ids)
        message = chat.choices[0].message
        assert message.model_dump()["reasoning"].strip() == REASONING
        if name == "speaker":
            assert message.content == CONTENT and not message.tool_calls
        else:
            [made] = message.tool_calls
            assert (made.function.name, made.function.arguments) == ("search", '{"query": "ferry"}')
    remote.close()


def test_strangers_pages_are_refused(client):
    assert httpx.get(f"{client.url}/v1/models", headers={"Host": "stranger.example"}).status_code == 403
    answer = httpx.post(f"{client.url}/pause", headers={"Origin": "http://stranger.example"})
    assert answer.status_code == 403 and httpx.post(f"{client.url}/collective_rpc").status_code == 404


def test_a_folder_that_it_cannot_serve_is_one_sentence(tmp_path, make_model, folders):
    save_folder(make_model(reciting_config(Tokenizer.load(folders["speaker"])), indexer=True), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "model.inference.vllm", f"x={tmp_path}", "--python", str(ENVIRONMENT)],
        capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: vLLM's CPU attention is built for a latent of 512")
