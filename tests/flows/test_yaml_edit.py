"""One value changes, every other byte stays; what a YAML reader sees afterwards is exactly the change."""

import pytest
import yaml

from flows.yaml_edit import set_value
from pipeline.errors import UserError

TEXT = """\
# a recipe
name: x   # keep me

model:
  base: 50_000.0
  steps: [1, 2]
sft: {}
empty:
deep:
  inner:
    a: 1  # one
    b: {c: 2, d: {}}

# behind
last: 3
"""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "y"),
        ("model.base", 1e-5),
        ("model.steps", [3]),
        ("model.new", True),
        ("sft.optimizer.muon_lr", 0.02),
        ("empty.a.b", None),
        ("deep.inner.b.d.e", "text: with colon"),
        ("deep.inner.b.c", -7),
        ("deep.inner.z", 1),
        ("deep.other.z", 0.5),
        ("fresh.a", {"b": 1}),
        ("last", 4),
    ],
)
def test_only_the_value_changes(path, value):
    keys = path.split(".")
    changed = set_value(TEXT, keys, value)
    expected = yaml.safe_load(TEXT)
    at = expected
    for key in keys[:-1]:
        if not isinstance(at.get(key), dict):
            at[key] = {}
        at = at[key]
    at[keys[-1]] = value
    assert yaml.safe_load(changed) == expected
    kept = [line for line in TEXT.splitlines() if line in changed.splitlines()]
    assert len(kept) >= len(TEXT.splitlines()) - 1


def test_a_text_without_final_newline():
    assert yaml.safe_load(set_value("a: 1", ["b"], 2)) == {"a": 1, "b": 2}


def test_below_a_single_value_and_whole_blocks_are_refused():
    with pytest.raises(UserError, match="single value"):
        set_value(TEXT, ["name", "a"], 1)
    with pytest.raises(UserError, match="change it in the file"):
        set_value(TEXT, ["deep"], 1)
