"""What asynchronous RL is compared by, on known rewards; a finished run is kept for its own settings."""

import argparse
import json

import pytest

from benchmarks.async_rl import compared, kept, settings
from pipeline import artifacts
from pipeline.errors import UserError


def runs(*rewards: list[float], seconds: float = 1.0) -> list[dict]:
    return [{"heldout": {"rewards": list(one)}, "seconds": seconds} for one in rewards]


def test_variants_are_compared_with_the_weights_before_and_with_async_seed_by_seed():
    found = compared({
        "before": runs([0, 0, 1, 0], [0, 0, 0, 0]),
        "sync": runs([1, 1, 1, 1], [1, 1, 1, 1], seconds=6.0),
        "async": runs([1, 0, 1, 0], [1, 0, 0, 0], seconds=2.0),
    })  # fmt: skip
    assert found["async_less_before"]["seeds"] == [0.25, 0.25]
    assert found["sync_less_before"]["seeds"] == [0.75, 1.0] and found["sync_less_before"]["mean"] == 0.875
    assert found["sync_less_async"]["seeds"] == [0.5, 0.75]
    assert found["speedup"] == [3.0, 3.0]
    assert found.keys() == {"async_less_before", "sync_less_before", "sync_less_async", "speedup"}


def test_a_finished_run_is_taken_for_its_own_settings_and_weights_alone(tmp_path):
    def arguments(weights: str, steps: int) -> argparse.Namespace:
        folder = tmp_path / weights
        if not folder.exists():
            draft = tmp_path / "draft"
            draft.mkdir()
            (draft / "model").write_text(weights)
            artifacts.publish(draft, folder, {"identity": weights})
        return argparse.Namespace(checkpoint=folder, steps=steps, runs=tmp_path, out=tmp_path / "out.json")

    same = arguments("a", 2)
    (tmp_path / "sync-0.json").write_text(json.dumps({"settings": settings(same), "seconds": 3.0}))
    assert kept("sync", 0, same) == {"seconds": 3.0}
    for other in (arguments("a", 3), arguments("b", 2)):
        with pytest.raises(UserError, match="is of a run with other settings: name another folder"):
            kept("sync", 0, other)
