"""vLLM's server as a rollout backend beside our engine: token ids in; ids, log-probs and versions out.

    client = VllmClient("http://127.0.0.1:8001")
    completions = client.generate(prompts, SamplingParams(...))   # as Engine.generate
    client.push(folder, version, trainer=model, rows=rows)         # and checked against the trainer

Only what vLLM does differently shows: a seed fixes a request's draws here too, but they are others than ours.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from model.inference.generate import score
from model.inference.request import Completion, SamplingParams, Token
from model.transformer import Transformer

# Median difference of log-probs, in nats, up to which an engine has the trainer's weights. In float32 vLLM is
# within 1e-5 for the first hundred tokens; the rounding of its rotary angles grows with the position. In
# bfloat16 a small update can hide.
TOLERANCE = {torch.float32: 1e-4}
COARSE_TOLERANCE = 0.05
FINISH = {"stop": "stop", "length": "length", "abort": "cancelled"}
FIRST_VERSION = "default"  # vLLM's label of the weights that it started with


class StaleWeights(RuntimeError):
    """The engine does not compute with the trainer's weights."""


class VllmClient:
    def __init__(self, url: str, *, concurrency: int = 64, seconds: float = 600.0):
        """``concurrency``: requests at once; ``seconds``: for one answer."""
        self.url = url.rstrip("/")
        limits = httpx.Limits(max_connections=concurrency)
        self._http = httpx.Client(base_url=self.url, timeout=seconds, limits=limits, trust_env=False)
        self._concurrency = concurrency

    def close(self) -> None:
        self._http.close()

    @property
    def version(self) -> int:
        """Of the loaded weights."""
        return self._json("GET", "/health")["version"]

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Completion]:
        """The completions of all prompts, in their order. One ``params`` with a seed serves all: prompt n
        draws with ``seed + n``. Raises ``ValueError`` with the server's words for a request it refuses.
        """
        if isinstance(params, SamplingParams):
            seed = params.seed
            params = [params if seed is None else replace(params, seed=seed + n) for n in range(len(prompts))]
        jobs = list(zip(prompts, params, strict=True))
        with ThreadPoolExecutor(self._concurrency) as pool:
            return list(pool.map(lambda job: self._complete(*job), jobs))

    def score(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """As ``model.inference.generate.score``; a row must leave room for one more token in the context."""
        params = SamplingParams(max_new_tokens=1, temperature=0, prompt_logprobs=True)
        completions = self.generate(rows, params)
        return [np.array([t.logprob for t in c.prompt], dtype=np.float32) for c in completions]

    def pause(self) -> None:
        """Stop sampling between two tokens; requests are kept and new ones wait."""
        self._json("POST", "/pause")

    def resume(self) -> None:
        self._json("POST", "/resume")

    def load_weights(self, folder: str | Path, version: int, checksum: str | None = None) -> None:
        """Go on with the weights of a folder that the server can read; requests under way go on with them.

        ``checksum``: that of ``weights.checksum``. Raises ``ValueError`` for weights that do not fit; then
        nothing has changed.
        """
        body = {"folder": str(Path(folder).absolute()), "version": version, "checksum": checksum}
        self._json("POST", "/load_weights", body)

    def push(
        self, folder: str | Path, version: int, *, trainer: Transformer, rows: Sequence[Sequence[int]]
    ) -> float:
        """``load_weights``, then ``check``. ``trainer`` is the model that was saved as ``folder``."""
        self.load_weights(folder, version)
        return self.check(trainer, rows)

    def check(self, trainer: Transformer, rows: Sequence[Sequence[int]]) -> float:
        """How far the log-probs of the tokens of ``rows`` are from the trainer's, in nats: the median, which
        tokens whose experts changed at a near tie leave alone.

        Take rows of a hundred tokens or so. Raises ``StaleWeights`` where the difference is more than the
        trainer's dtype explains.
        """
        mode = "sparse" if trainer.has_indexer else "dense"
        theirs, own = self.score(rows), score(trainer, rows, attention=mode)
        apart = float(np.median(np.abs(np.concatenate(theirs) - np.concatenate(own))))
        most = TOLERANCE.get(trainer.embed.weight.dtype, COARSE_TOLERANCE)
        if not apart <= most:  # nor NaN
            raise StaleWeights(
                f"vLLM's log-probs are {apart:.2g} nats from the trainer's (at most {most:g}): it computes "
                "with other weights; load them again, or start the server anew"
            )
        return apart

    def _complete(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        body = {"token_ids": list(prompt), "sampling_params": sampling_fields(params)}
        answer = self._json("POST", "/inference/v1/generate", body)
        return completion_of(answer, list(prompt), params.top_logprobs)

    def _json(self, method: str, path: str, body: dict | None = None) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.ConnectError as error:
            raise ConnectionError(f"no vLLM server answers at {self.url}: start it") from error
        if answer.is_error:
            raise ValueError(f"vLLM refused {path} ({answer.status_code}): {_reason(answer)}")
        return answer.json()


def sampling_fields(params: SamplingParams) -> dict[str, Any]:
    """Our words in vLLM's. Raises ``ValueError`` for what it cannot do."""
    if params.max_new_tokens < 1:
        raise ValueError("vLLM samples at least one token: set max_new_tokens to 1 or more")
    return {
        "max_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "seed": params.seed,
        "stop_token_ids": sorted(params.stop_ids),
        "stop": list(params.stop_strings),
        "ignore_eos": True,  # the stop tokens are those given, as in our engine
        "logprobs": params.top_logprobs,
        "prompt_logprobs": 0 if params.prompt_logprobs else None,
    }


def completion_of(answer: dict[str, Any], prompt: list[int], top: int) -> Completion:
    """An answer of /inference/v1/generate in our words."""
    [choice] = answer["choices"]
    versions = [_version(span["version"]) for span in choice["weight_versions"] or []
                for _ in range(span["start"], span["end"])]  # fmt: skip
    tokens = [
        Token(entry["token_id"], entry["logprob"], version, _best(entry["top_logprobs"], top))
        for entry, version in zip(choice["logprobs"]["content"], versions, strict=True)
    ]
    return Completion(
        tokens=tokens,
        prompt=_prompt_tokens(answer["prompt_logprobs"], prompt, versions[0] if versions else 0),
        finish=FINISH.get(choice["finish_reason"], "error"),
        stop=choice["stop_reason"],
        error="" if choice["finish_reason"] in FINISH else f"vLLM ended it as {choice['finish_reason']}",
    )


def _prompt_tokens(table: list[dict | None] | None, prompt: list[int], version: int) -> list[Token]:
    """Of every prompt token but the first; the version is that of the first sampled token."""
    pairs = zip(prompt[1:], (table or [None])[1:], strict=False)
    return [Token(token, entries[str(token)]["logprob"], version) for token, entries in pairs]


def _best(entries: list[dict], count: int) -> tuple[tuple[int, float], ...]:
    """Best first. vLLM puts the sampled token before them, whatever its rank, even if none is asked for."""
    ranked = sorted(entries, key=lambda entry: entry["rank"])
    return tuple((entry["token_id"], entry["logprob"]) for entry in ranked[:count])


def _version(label: str) -> int:
    return 0 if label == FIRST_VERSION else int(label)


def _reason(answer: httpx.Response) -> str:
    try:
        return answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return answer.text[:500] or answer.reason_phrase
