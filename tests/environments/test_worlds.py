"""What the worlds without a repository share: the split, and that a model's own text reaches the verifier."""

import asyncio
import json

import pytest

from environments.interface import MODES, Environment, is_heldout, play
from environments.mathematics.environment import Mathematics
from environments.programs.environment import Programs
from environments.python_tool import PythonTool
from environments.science.environment import Science
from environments.service.environment import Service
from model.chat.parser import parse_text

WORLDS = (Mathematics(), Science(), Programs(), PythonTool(), Service())
TRAINED = [(world, family) for world in WORLDS for family in world.families]
ALL = TRAINED + [(world, family) for world in WORLDS for family in world.evaluation_only]


def written(message: dict) -> str:
    """An assistant message as GLM's format spells it, behind the generation prompt."""
    text = f"{message['reasoning_content']}</think>" if message.get("reasoning_content") else ""
    text += message["content"]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
            for key, value in function["arguments"].items()
        )
        text += f"<tool_call>{function['name']}{arguments}</tool_call>"
    return text


def name(pair: tuple[Environment, str]) -> str:
    return f"{pair[0].name}/{pair[1]}"


@pytest.mark.parametrize("pair", TRAINED, ids=name)
def test_training_and_heldout_prompts_never_coincide(pair):
    world, family = pair
    trained = {json.dumps(world.make_task(family, seed).messages) for seed in range(60)}
    heldout = [world.make_task(family, seed, heldout=True) for seed in range(15)]
    assert all(task.heldout and is_heldout(task.messages) for task in heldout)
    prompts = {json.dumps(task.messages) for task in heldout}
    assert not trained & prompts and len(prompts) > 10


@pytest.mark.parametrize("pair", ALL, ids=name)
def test_what_a_model_writes_is_what_is_judged(pair):
    world, family = pair
    for seed, mode in enumerate(MODES):
        task = world.make_task(family, seed, heldout=family in world.evaluation_only)
        answers = []
        for message in world.oracle(task, mode):
            parsed = parse_text(written(message), list(task.tools), thinking=mode != "off")
            assert parsed.valid, (parsed.reason, message)
            answers.append(parsed.message)
        assert asyncio.run(play(world, task, answers))[1].reward == 1.0, (task, answers)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_names_and_schemas_are_in_order(world):
    assert len(set(world.families)) == len(world.families) and world.evaluation_only
    assert not set(world.families) & set(world.evaluation_only)
    for family in world.families:
        task = world.make_task(family, 0)
        assert task.id.startswith(f"{world.name}/{family}/") and task.licence and task.provenance
        for tool in task.tools:
            parameters = tool["function"]["parameters"]
            assert tool["type"] == "function" and tool["function"]["description"]
            assert set(parameters["required"]) == set(parameters["properties"])
