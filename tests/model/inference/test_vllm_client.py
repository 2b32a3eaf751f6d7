"""The client's words and vLLM's. The answers are such as vLLM 0.32.0 gave; no vLLM is needed."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from model.inference.request import SamplingParams, Token
from model.inference.vllm.client import VllmClient, completion_of, sampling_fields


def content(token: int, logprob: float, *others: tuple[int, float, int]) -> dict:
    top = [{"token_id": t, "logprob": p, "rank": r} for t, p, r in [(token, logprob, 3), *others]]
    return {"token_id": token, "logprob": logprob, "rank": 3, "top_logprobs": top}


ANSWER = {
    "prompt_logprobs": [None, {"10": {"logprob": -10.09, "rank": 1353, "decoded_token": "+"}}],
    "choices": [
        {
            "index": 0, "finish_reason": "stop", "stop_reason": 400, "token_ids": [1331, 1693, 400],
            "weight_versions": [
                {"version": "default", "start": 0, "end": 1}, {"version": "7", "start": 1, "end": 3},
            ],
            "logprobs": {
                "content": [
                    content(1331, -3.5, (1258, -0.5, 1), (9, -0.75, 2)), content(1693, -1.1),
                    content(400, -2.7),
                ]
            },
        }
    ],
}  # fmt: skip


def test_an_answer_in_our_words():
    completion = completion_of(ANSWER, [17, 10], top=2)
    assert completion.tokens[0] == Token(1331, -3.5, 0, ((1258, -0.5), (9, -0.75)))
    assert completion_of(ANSWER, [17, 10], top=0).tokens[0].top == ()
    assert [token.version for token in completion.tokens] == [0, 7, 7]
    assert completion.ids == [1331, 1693, 400]
    assert completion.prompt == [Token(10, -10.09, 0)]
    assert (completion.finish, completion.stop) == ("stop", 400)


def test_an_end_that_is_no_end_is_an_error():
    choice = {**ANSWER["choices"][0], "finish_reason": "repetition"}
    completion = completion_of({"prompt_logprobs": None, "choices": [choice]}, [17, 10], top=0)
    assert completion.finish == "error" and "repetition" in completion.error and completion.prompt == []


def test_parameters_in_its_words():
    fields = sampling_fields(
        SamplingParams(max_new_tokens=5, temperature=0.5, top_k=3, seed=9, stop_ids=frozenset({8, 2}))
    )
    assert fields["max_tokens"] == 5 and fields["temperature"] == 0.5 and fields["top_k"] == 3
    assert fields["stop_token_ids"] == [2, 8] and fields["ignore_eos"] is True
    assert fields["logprobs"] == 0 and fields["prompt_logprobs"] is None and fields["seed"] == 9
    with pytest.raises(ValueError, match="at least one token"):
        sampling_fields(SamplingParams(max_new_tokens=0))


@pytest.fixture
def answering():
    """A server that answers every POST with a status and body, and keeps what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        status, body, sent = 200, b"", []

        def do_POST(self):
            Handler.sent.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(Handler.status)
            self.send_header("content-length", str(len(Handler.body)))
            self.end_headers()
            self.wfile.write(Handler.body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", Handler
    server.shutdown()
    server.server_close()


def test_one_seed_serves_all_prompts(answering):
    url, handler = answering
    handler.body = json.dumps({**ANSWER, "prompt_logprobs": None}).encode()
    client = VllmClient(url, concurrency=1)
    completions = client.generate([[1, 2], [3, 4]], SamplingParams(max_new_tokens=3, seed=5))
    assert [len(c.tokens) for c in completions] == [3, 3]
    assert [(b["token_ids"], b["sampling_params"]["seed"]) for b in handler.sent] == [
        ([1, 2], 5),
        ([3, 4], 6),
    ]
    client.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [(b'{"error": {"message": "too long"}}', "too long"), (b"<html>", "<html>"), (b'{"error": "no"}', "no")],
)
def test_a_refusal_carries_the_servers_words(answering, body, words):
    url, handler = answering
    handler.status, handler.body = 400, body
    client = VllmClient(url)
    with pytest.raises(ValueError, match=rf"/inference/v1/generate \(400\): .*{words}"):
        client.generate([[1]], SamplingParams())
    client.close()


def test_nobody_answers(answering):
    client = VllmClient("http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match="no vLLM server answers"):
        client.pause()
    client.close()
