"""The graph as dvc.yaml writes it."""

import re
from typing import get_args

import pytest
import yaml

from pipeline.errors import UserError
from pipeline.graph import ancestors, descendants, load_graph, select
from pipeline.recipe.load import Recipe
from pipeline.recipe.rl import Teacher

TEXT = """
stages:
  b:
    foreach: ${{recipes}}
    do:
      cmd: exec python -m some.b --recipe ${{key}}
      meta: {{accelerator: true}}
      deps: ["artifacts/${{key}}/{source}"]
      params:
        - recipes/${{key}}.yaml: [seed, sft]
        - recipes/${{item.extends}}.yaml: [seed, sft]
  a:
    foreach: ${{recipes}}
    do:
      desc: first
      cmd: exec python -m some.a --recipe ${{key}}
      deps: [some/a.py]
  c:
    foreach: ${{recipes}}
    do: {{cmd: exec python -m some.c --recipe x, deps: ["artifacts/${{key}}/b", "artifacts/${{key}}/a"]}}
"""


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "dvc.yaml"
    path.write_text(TEXT.format(source="a"))
    return load_graph(path)


def test_stages_come_after_their_inputs(graph):
    assert list(graph) == ["a", "b", "c"]
    assert graph["b"].inputs == ("a",) and graph["b"].accelerator and not graph["a"].accelerator
    assert graph["b"].module == "some.b" and graph["b"].sections == ("seed", "sft")
    assert graph["a"].code == ("some/a.py",) and graph["a"].description == "first"
    assert ancestors(graph, "c") == {"a", "b"} and descendants(graph, "a") == {"b", "c"}


def test_selection(graph):
    assert select(graph, None, ()) == ["a", "b", "c"]
    assert select(graph, "b", ()) == ["b", "c"]
    assert select(graph, None, ("c", "a")) == ["a", "c"]
    with pytest.raises(UserError, match=r"no stage 'x' in dvc.yaml \(stages: a, b, c\)"):
        select(graph, None, ("x",))
    with pytest.raises(UserError, match=r"alone \(a, c\) and a stage to start from \(b\) .*give one of them"):
        select(graph, "b", ("a", "c"))


def test_a_circle_and_an_unknown_input_are_named(tmp_path):
    path = tmp_path / "dvc.yaml"
    path.write_text(TEXT.format(source="c"))
    with pytest.raises(UserError, match="circle: b -> c -> b"):
        load_graph(path)
    path.write_text(TEXT.format(source="z"))
    with pytest.raises(UserError, match="stage b reads the artifact of z, which is no stage"):
        load_graph(path)
    with pytest.raises(UserError, match="run this from the root"):
        load_graph(tmp_path / "none.yaml")


def test_the_repository_s_graph_fits_the_recipe_and_the_deployments():
    graph = load_graph()
    entries = yaml.safe_load(open("dvc.yaml"))["stages"]
    for name, stage in graph.items():
        body = entries[name]["do"]
        assert re.fullmatch(r"exec python -m [\w.]+ --recipe \$\{key\}", body["cmd"])
        assert set(stage.sections) <= set(Recipe.model_fields), name
        listed = [set(keys) for params in body["params"] for keys in params.values()]
        assert listed == [set(stage.sections)] * 2, f"{name} lists other sections for the parent recipe"
        assert body["outs"] == [{f"artifacts/${{key}}/{name}": {"persist": True}}]
        # Data stages and the report carry their code in their identity, training stages their version.
        assert bool(stage.code) == (not stage.module.startswith("tasks.") or name == "report")
    deployments = yaml.safe_load(open("prefect.yaml"))["deployments"]
    expected = {name: f"flows.stage.{name}" for name in graph}
    expected["full-pipeline"] = "flows.full_pipeline.full_pipeline"
    assert {entry["name"]: entry["entrypoint"] for entry in deployments} == expected


def test_distillation_reads_every_teacher_that_a_recipe_may_name():
    assert set(get_args(Teacher)) < set(load_graph()["distill"].inputs)
