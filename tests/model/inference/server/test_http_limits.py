"""Bad requests: the right status code, OpenAI's shape of errors, and a server that goes on."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[4]

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def http(served):
    with httpx.Client(base_url=served.url, timeout=PATIENCE) as client:
        yield client


def refused(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"] and set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1,", b"nonsense", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"[" * 100_000]
)
def test_what_is_not_json(http, body):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/load_weights"):
        assert refused(http.post(path, content=body), 400)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": -1}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 1}}}}]},
         "tools.0.function.parameters.properties.a"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "chat_template_kwargs.enable_thinking"),
        ({"tool_choice": "required"}, None),
        ({"logit_bias": {"5": 1}}, None),
        ({"top_logprobs": 3}, None),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_its_field(http, changes, field):
    error = refused(http.post("/v1/chat/completions", json={"messages": MESSAGES, **changes}), 422)
    assert field is None or error["param"].startswith(field)


def test_null_and_unknown_fields_do_no_harm(http):
    body = {
        "messages": MESSAGES,
        "max_tokens": 1,
        "temperature": None,
        "stop": None,
        "user": "me",
        "store": True,
    }
    assert http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("ids", [[-1], [10**6], [2**70], [3, 5, 10**9]])
def test_ids_outside_the_vocabulary(http, ids):
    refused(http.post("/v1/completions", json={"prompt": ids}), 422)
    refused(http.post("/detokenize", json={"tokens": ids}), 422)


def test_a_million_tokens(http):
    error = refused(http.post("/v1/completions", json={"prompt": [5] * 1_000_000, "max_tokens": 1}), 400)
    assert error["code"] == "context_length_exceeded" and "1000000 tokens" in error["message"]
    error = refused(http.post("/v1/completions", json={"prompt": "word " * 500_000}), 400)
    assert error["code"] == "context_length_exceeded"
    long = [{"role": "user", "content": "word " * 500_000}]
    assert refused(http.post("/v1/chat/completions", json={"messages": long}), 400)["code"]


def test_a_prompt_and_what_is_asked_must_fit_the_context(http):
    context = http.get("/v1/models/speaker").json()["max_model_len"]
    body = {"prompt": [5] * 10, "max_tokens": context - 9}
    assert refused(http.post("/v1/completions", json=body), 400)["code"] == "context_length_exceeded"
    full = [{"role": "user", "content": "x"}] * context
    assert refused(http.post("/v1/chat/completions", json={"messages": full}), 400)["code"]


def test_a_body_that_is_too_large(http):
    text = json.dumps({"prompt": "x" * (5 << 20)})
    refused(http.post("/v1/completions", content=text), 413)
    parts = (text[start : start + 65_536].encode() for start in range(0, len(text), 65_536))
    try:  # announced by no header: the server stops to read, which the client may notice first
        refused(http.post("/v1/completions", content=parts), 413)
    except (httpx.NetworkError, httpx.RemoteProtocolError):
        pass


def test_more_sequences_than_the_server_takes(http):
    error = refused(http.post("/v1/completions", json={"prompt": ["x"] * 100, "n": 3}), 422)
    assert error["param"] == "n"


def test_unknown_paths_and_methods(http):
    refused(http.get("/v1/nothing"), 404)
    refused(http.get("/v1/chat/completions"), 405)
    refused(http.post("/v1/completions", json={"model": "nobody"}), 404)


def test_pages_of_strangers_are_kept_out(http, served):
    """DNS rebinding and cross-site requests, through the browser of somebody on this machine."""
    body = {"prompt": "hello", "max_tokens": 1}
    refused(http.post("/v1/completions", json=body, headers={"Host": "evil.example"}), 403)
    refused(http.post("/pause", headers={"Origin": "http://evil.example"}), 403)
    refused(http.get("/v1/models", headers={"Host": "evil.example:80"}), 403)
    assert http.post("/v1/completions", json=body, headers={"Origin": served.url}).status_code == 200


def test_tokenize_and_back(http, tokenizer):
    text = "Größe 42 <|user|> 🙂"
    answer = http.post("/tokenize", json={"prompt": text}).json()
    assert answer["tokens"] == tokenizer.encode(text) and answer["count"] == len(answer["tokens"])
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}
    chat = http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    assert tokenizer.decode(chat) == "[gMASK]<sop><|user|>hello<|assistant|><think>"
    refused(http.post("/tokenize", json={}), 422)


def test_what_happened_is_counted(http, served):
    name = 'glm5_requests_total{path="/v1/completions",status="422"}'
    before, sampled = served.metric(name), served.metric("glm5_sampled_tokens_total")
    http.post("/v1/completions", json={"prompt": {}})
    http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 7})
    assert served.metric(name) == before + 1
    assert served.metric("glm5_sampled_tokens_total") == sampled + 7
    assert served.metric("glm5_sequences_inside") == 0


def test_an_api_key_guards_all_but_the_page_and_the_sign_of_life(start_server):
    url = start_server(GLM5_API_KEY="secret").url
    http = httpx.Client(base_url=url, timeout=PATIENCE)
    body = {"prompt": "hello", "max_tokens": 1}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer sécret".encode()}):
        assert refused(http.post("/v1/completions", json=body, headers=headers), 401)["code"]
        refused(http.get("/metrics", headers=headers), 401)
        refused(http.post("/pause", headers=headers), 401)
    right = {"Authorization": "Bearer secret"}
    assert http.post("/v1/completions", json=body, headers=right).status_code == 200
    assert http.get("/").status_code == http.get("/health").status_code == 200


def test_without_a_key_it_stays_on_this_machine(folders):
    done = subprocess.run(
        [sys.executable, "-m", "model.inference.server", f"s={folders['speaker']}", "--host", "0.0.0.0"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1 and "GLM5_API_KEY" in done.stderr and done.stderr.count("\n") == 1
