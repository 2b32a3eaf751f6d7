"""Changes to the files that decide a run: a recipe made active for DVC, values overridden in a recipe.

What ran is what is on disk: an override is written into the recipe file, comments kept, after it was checked.
"""

import tempfile
from pathlib import Path
from typing import Any

import yaml

from flows.yaml_edit import set_value
from pipeline.errors import UserError
from pipeline.files import parse_yaml
from pipeline.graph import load_graph
from pipeline.recipe.load import Recipe, load_recipe, parent_of, recipe_path

PARAMS = Path("params.yaml")


def activate(recipe: str) -> list[str]:
    """Make ``recipe`` known to DVC. Returns a message for each file that this changed."""
    parent = parent_of(recipe)
    messages = _name_sections(recipe, parent)
    known = parse_yaml(PARAMS.read_text())["recipes"]
    if known.get(recipe) == {"extends": parent}:
        return messages
    _write(PARAMS, set_value(PARAMS.read_text(), ["recipes", recipe], {"extends": parent}))
    return [*messages, f"recipe {recipe} is now active in {PARAMS}"]


def _name_sections(recipe: str, parent: str) -> list[str]:
    """Name in the recipe's file what it takes unchanged from its parent: DVC refuses a parameter that a file
    does not name. A section becomes ``{}``, a single value is written out.
    """
    resolved = load_recipe(recipe).model_dump(mode="json")
    path = recipe_path(recipe)
    text = path.read_text()
    given = parse_yaml(text)
    wanted = dict.fromkeys(section for stage in load_graph().values() for section in stage.sections)
    missing = [name for name in wanted if name not in given and resolved[name] is not None]
    for name in missing:
        text = set_value(text, [name], {} if isinstance(resolved[name], dict) else resolved[name])
    if not missing:
        return []
    _check(path, text)
    _write(path, text)
    return [f"{path} now names what it takes from {parent}: {', '.join(missing)}"]


def override(recipe: str, assignments: list[str], stage: str | None = None) -> list[str]:
    """Write ``key=value`` assignments into the recipe file. Returns a message for each value that changed.

    A key is a dotted path in the recipe; with ``stage``, one that starts with no section's name is taken as a
    path in that stage's own section (``optimizer.muon_lr=0.003``). Nothing is written when the result is no
    valid recipe.
    """
    path = recipe_path(recipe)
    text = path.read_text()
    resolved = load_recipe(recipe).model_dump(mode="json")
    messages = []
    for assignment in assignments:
        keys, value = _parse(assignment, stage)
        before = _lookup(resolved, keys)
        if before == value and type(before) is type(value):
            continue
        text = set_value(text, keys, value)
        messages.append(f"{path}: {'.'.join(keys)} {before} -> {value}")
    if messages:
        _check(path, text)
        _write(path, text)
    return messages


def _parse(assignment: str, stage: str | None) -> tuple[list[str], Any]:
    key, sign, text = assignment.partition("=")
    keys = key.strip().split(".")
    if not sign or not all(keys):
        raise UserError(
            f"override {assignment!r} is not of the form key=value, like sft.optimizer.muon_lr=0.003"
        )
    if stage is not None and keys[0] not in Recipe.model_fields:
        keys = [stage, *keys]
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"override {assignment!r}: {text!r} is not a YAML value") from None
    if isinstance(value, str):  # YAML 1.1 reads 1e-3, without a point, as text
        try:
            value = float(value)
        except ValueError:
            pass
    return keys, value


def _lookup(values: Any, keys: list[str]) -> Any:
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _check(path: Path, text: str) -> None:
    """Raise ``UserError`` when ``text`` in the place of ``path`` would be no valid recipe."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        draft.write_text(text)
        try:
            load_recipe(str(draft))
        except UserError as error:
            raise UserError(str(error).replace(str(draft), f"{path}, with the overrides")) from None


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(text)
    draft.replace(path)
