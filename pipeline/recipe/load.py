"""Load ``recipes/<name>.yaml``: ``extends``, strict checks, the nearest match for a misspelt key."""

import difflib
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from model.config import ModelConfig
from pipeline.errors import UserError
from pipeline.files import parse_yaml
from pipeline.recipe.base import Section
from pipeline.recipe.consistency import faults
from pipeline.recipe.data import (
    AgentTasksSection,
    CollectSection,
    CurateSection,
    EvalSetsSection,
    MidtrainDataSection,
    PretrainDataSection,
    SftDataSection,
    TokenizerSection,
)
from pipeline.recipe.evaluation import EvaluateSection, ReportSection
from pipeline.recipe.model import ModelSection
from pipeline.recipe.quantization import QuantizeSection
from pipeline.recipe.rl import (
    AgenticRlSection,
    DistillSection,
    GeneralRlSection,
    ReasoningRlSection,
    RlTasksSection,
)
from pipeline.recipe.search import SearchTasksSection
from pipeline.recipe.training import (
    DsaAdaptSection,
    DsaWarmupSection,
    MidtrainSection,
    PretrainSection,
    SftSection,
)

FOLDER = Path("recipes")


def _folder_name(name: str) -> str:
    """The name becomes a folder below ``artifacts/`` and ``runs/``, and may not lead out of them."""
    if not name.strip() or name == "." or ".." in name or any(part in name for part in "/\\\0\n"):
        raise ValueError(
            f"{name!r} cannot be the name of a folder: leave name out, or use letters and digits"
        )
    return name


class Recipe(Section):
    """All sections; a stage's own section has the stage's name."""

    name: Annotated[str, AfterValidator(_folder_name)]
    description: str = ""
    # Of the training stages, which draw from PyTorch's 64-bit seeds: a million and three a training seed.
    seed: int = Field(0, ge=0, le=2**44)
    # Of the data stages: several training seeds share their data.
    data_seed: int = Field(0, ge=0, le=2**63 - 1)
    model: ModelSection
    collect: CollectSection
    eval_sets: EvalSetsSection
    curate: CurateSection
    tokenizer: TokenizerSection
    pretrain_data: PretrainDataSection
    midtrain_data: MidtrainDataSection
    sft_data: SftDataSection
    agent_tasks: AgentTasksSection
    search_tasks: SearchTasksSection
    rl_tasks: RlTasksSection
    pretrain: PretrainSection
    midtrain: MidtrainSection
    dsa_warmup: DsaWarmupSection
    dsa_adapt: DsaAdaptSection
    sft: SftSection
    reasoning_rl: ReasoningRlSection
    agentic_rl: AgenticRlSection
    general_rl: GeneralRlSection
    distill: DistillSection
    quantize: QuantizeSection
    evaluate: EvaluateSection
    report: ReportSection


def recipe_names() -> list[str]:
    """Names of the recipes in ``recipes/``."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """The file of a recipe given by name or by path. Raises ``UserError`` with the names that exist."""
    if not name.strip():
        raise UserError(
            f"the name of the recipe is empty: give one of {', '.join(recipe_names())}, or a path"
        )
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.exists():
        if not FOLDER.is_dir():
            raise UserError(f"there is no folder {FOLDER}/ here: run this from the root of the repository")
        known = ", ".join(recipe_names()) or "none"
        raise UserError(f"there is no recipe {path} (in {FOLDER}/: {known})")
    return path


def load_recipe(name: str) -> Recipe:
    """The recipe with its parents merged in.

    Raises ``UserError`` for any key or value that is wrong and for sections that do not fit one another.
    """
    path = recipe_path(name)
    values = _read(path, ())
    try:
        recipe = Recipe(**values)
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error)}") from None
    if found := faults(recipe):
        raise UserError(f"{path}: {'; '.join(found)}")
    return recipe


def parent_of(name: str) -> str:
    """The name that ``extends:`` gives, or the recipe's own name: DVC watches both files."""
    return _parse(recipe_path(name)).get("extends") or name


def _read(path: Path, children: tuple[Path, ...]) -> dict:
    if path in children:
        raise UserError(f"{path} extends itself through {' -> '.join(str(child) for child in children)}")
    values = _parse(path)
    parent = values.pop("extends", None)
    if parent is None:
        return {"name": path.stem, **values}
    inherited = _read(recipe_path(parent), children + (path,))
    return _merge(inherited, {"name": path.stem, **values})


def _parse(path: Path) -> dict:
    try:
        values = parse_yaml(path.read_text())
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name a recipe's file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a recipe's file") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or no such number or date
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold sections, like recipes/tiny.yaml")
    if not all(isinstance(key, str) for key in values) or not isinstance(values.get("extends", ""), str):
        raise UserError(f"{path}: section names and the value of extends must be text")
    return values


# Sections that are tables of free names: a child recipe replaces them as a whole.
_TABLES = {"mix", "contexts", "families", "modes", "teachers", "rewards", "exports"}


def _merge(base: dict, changes: dict) -> dict:
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict) and key not in _TABLES
        merged[key] = _merge(base[key], value) if nested else value
    return merged


def _explain(error: ValidationError) -> str:
    """All faults in one sentence, with the nearest known key beside an unknown one."""
    return "; ".join(_explain_one(fault) for fault in error.errors())


def _explain_one(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] != "extra_forbidden":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{where}: {message}" if where else message
    known = _fields_at(fault["loc"][:-1])
    nearest = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
    hint = f", did you mean {nearest[0]!r}?" if nearest else f" (known: {', '.join(known)})"
    return f"unknown key {where!r}{hint}"


def _fields_at(location: tuple) -> list[str]:
    kind: Any = Recipe
    for part in location:
        if isinstance(part, int):
            continue
        annotation = kind.model_fields[part].annotation
        arguments = [item for item in getattr(annotation, "__args__", ()) if isinstance(item, type)]
        models = [
            item
            for item in [annotation, *arguments]
            if isinstance(item, type) and issubclass(item, BaseModel)
        ]
        if not models:
            return []
        kind = models[0]
    if kind is ModelSection:
        return [*kind.model_fields, *ModelConfig.model_fields]
    return list(kind.model_fields)
