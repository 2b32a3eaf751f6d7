"""The few numbers of an evaluation that stand for it, flat, for ``dvc metrics`` and MLflow."""

from collections.abc import Sequence

from environments.interface import MODES
from evals.policy import Result

# Suite -> (prefix of a score's name, its name in metrics.json)
CHOSEN = {
    "bits_per_byte": {"all": "bpb"},
    "sparse_attention": {
        "gap/sparse": "gap_sparse", "gap/window": "gap_window", "gap/random": "gap_random",
        "indexer_kl": "indexer_kl", "topk_recall": "topk_recall",
    },
    "long_context": {"dense/all": "long_dense", "sparse/all": "long_sparse", "window/all": "long_window"},
    "ruler": {"dense/all": "ruler_dense", "sparse/all": "ruler_sparse", "window/all": "ruler_window"},
    "humaneval": {"pass@1": "humaneval_pass_1", "parses": "humaneval_parses"},
    "answers": {"per_token": "answer_bits"},
    "sampled": {"mean/all": "sampled_mean", "mean/unseen": "sampled_unseen"},
    "environments": {
        **{f"exact/{mode}": f"exact_{mode}" for mode in MODES},
        **{f"valid/{mode}": f"valid_{mode}" for mode in MODES},
    },
}  # fmt: skip
EASY = 0.8  # exact match from which a family counts as learned


def headline(
    results: dict[tuple[str, str], Result], checkpoints: Sequence[str], baselines: Sequence[str]
) -> dict[str, float]:
    """``eval/<checkpoint>/<number>`` for each chosen score that is there."""
    numbers = {}
    for name in [*baselines, *checkpoints]:
        for suite, chosen in CHOSEN.items():
            result = results.get((name, suite))
            for score in result.scores if result else []:
                if score.name in chosen:
                    numbers[f"eval/{name}/{chosen[score.name]}"] = score.value
    last = results[checkpoints[-1], "environments"]
    families = [score for score in last.scores if score.name.startswith("exact/all/")]
    numbers["eval/families_learned"] = float(sum(score.value >= EASY for score in families))
    return numbers
