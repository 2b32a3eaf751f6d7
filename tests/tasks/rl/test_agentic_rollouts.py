"""What ends an agent's rollout, what it is worth, and what is recorded of a context that is folded.

The policy here calls ``calc`` with 1+2 in every turn, and nothing else.
"""

import asyncio
import contextlib

import pytest

from environments.context import OMITTED
from environments.interface import Environment, Task
from environments.tools import ToolEpisode, Tools
from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from model.inference.engine import Engine
from pipeline.recipe.rl import Folding
from tasks.rl.engines.client import Sampling
from tasks.rl.engines.local import LocalEngine
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.group import Group
from tasks.rl.groups import centred
from tasks.rl.rollout import Assignment, Limits, roll_out
from tasks.rl.router import Router
from tasks.rl.selection import select
from tests.tasks.rl.conftest import one_that_says
from tests.waiting import PATIENCE

ARGUMENTS = ["<arg_key>", "e", "</arg_key>", "<arg_value>", "1+2", "</arg_value>"]
CALL = ["</think>", "<tool_call>", "calc", *ARGUMENTS, "</tool_call>", "<|observation|>"]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Checkpoints by how they call."""
    turns = {
        "right": CALL,
        "unclosed": [part for part in CALL if part != "</tool_call>"],
        "unknown tool": [part.replace("calc", "bash") for part in CALL],
        "other arguments": [part for part in CALL if part not in ARGUMENTS],
    }
    return {name: one_that_says(tmp_path_factory.mktemp("policy"), [turn]) for name, turn in turns.items()}


@contextlib.asynccontextmanager
async def gateway_of(folder, context=1024):
    tokenizer = Tokenizer.load(folder)
    model = load_folder(folder).eval()
    model.config = model.config.model_copy(update={"max_positions": context})
    engine = LocalEngine(Engine(model), tokenizer.stop_ids)
    router = Router()
    router.join("local")
    try:
        yield Gateway(tokenizer, router, {"local": engine}, Sampling(32, temperature=0.0))
    finally:
        await engine.close()


def task(family="chain") -> Task:
    return Tools().make_task(family, 0)


def played(folder, environment: Environment, limits: Limits, what: Task | None = None, **options):
    """A trajectory, and the tokenizer to read it with."""

    async def run():
        async with gateway_of(folder, **options) as gateway:
            assignment = Assignment("rollout", "group", what or task(), "off", 5)
            return await roll_out(assignment, environment, gateway, limits), gateway

    trajectory, gateway = asyncio.run(run())
    assert gateway.sessions == 0
    return trajectory, gateway.tokenizer


def texts(trajectory, tokenizer) -> list[str]:
    return [tokenizer.decode(segment.ids) for segment in trajectory.segments]


@pytest.mark.parametrize(
    "policy, reason",
    [
        ("unclosed", "not in the chat format"),
        ("unknown tool", "there is no tool 'bash'"),
        ("other arguments", "calc takes the arguments e"),
    ],
)
def test_a_malformed_call_ends_the_rollout_with_0(policies, policy, reason):
    found, _ = played(policies[policy], Tools(), Limits())
    assert found.reward == 0.0 and reason in found.reason
    assert len(found.segments) == 1 and found.tokens > 3 and found.extra == {}


def test_a_well_formed_call_goes_on_until_the_turns_are_used_up(policies):
    found, tokenizer = played(policies["right"], Tools(), Limits(turns=3))
    assert (found.reward, found.reason) == (0.0, "the episode ended before the last answer")
    assert texts(found, tokenizer)[0].count("<tool_response>3</tool_response>") == 2
    assert len(found.segments) == 1 and found.tokens == 3 * turn_tokens(tokenizer)


def turn_tokens(tokenizer) -> int:
    return sum(1 if part in tokenizer.ids_by_name else len(tokenizer.encode(part)) for part in CALL[1:])


class Breaks(ToolEpisode):
    """Whose tool fails in the given attempts."""

    attempts = 0

    def call(self, name, arguments):
        if Breaks.attempts <= self.fails:
            raise OSError("the disk is gone")
        return super().call(name, arguments)

    async def reset(self, task):
        Breaks.attempts += 1
        return await super().reset(task)


class BreakingTools(Tools):
    def __init__(self, fails):
        Breaks.attempts, self._fails = 0, fails

    def episode(self):
        made = Breaks()
        made.fails = self._fails
        return made


def test_a_failing_environment_is_tried_again_and_gives_no_reward(policies):
    found, _ = played(policies["right"], BreakingTools(fails=9), Limits(turns=2, attempts=2))
    assert found.reward is None and "OSError: the disk is gone" in found.reason and Breaks.attempts == 2
    found, _ = played(policies["right"], BreakingTools(fails=1), Limits(turns=2, attempts=2))
    assert found.reward == 0.0 and Breaks.attempts == 2 and len(found.segments) == 1


def test_a_hanging_environment_gives_no_reward(policies):
    """The clock of the event loop leaps ahead once it hangs: what came before may take its time."""

    async def hang(message):
        loop = asyncio.get_running_loop()
        clock = loop.time
        loop.time = lambda: clock() + PATIENCE
        await asyncio.Event().wait()

    class Hangs(Tools):
        def episode(self):
            made = ToolEpisode()
            made.step = hang
            return made

    found, _ = played(policies["right"], Hangs(), Limits(seconds=PATIENCE, attempts=1))
    assert found.reward is None and found.reason == f"no verdict in {PATIENCE:.0f} s" and found.tokens > 0


def test_a_context_that_is_full_is_judged_as_it_is(policies):
    found, tokenizer = played(policies["right"], Tools(), Limits(turns=100), context=290)
    assert (found.reward, found.reason) == (0.0, "the episode ended before the last answer")
    assert len(found.segments[0]) == 290  # the last turn was cut off
    turns, cut = divmod(found.tokens, turn_tokens(tokenizer))
    assert turns >= 3 and cut and len(found.messages) == 1 + 2 * turns + 1


def test_a_prompt_that_is_longer_than_the_context_leaves_an_empty_group(policies):
    long = Task(**{**task().__dict__, "messages": ({"role": "user", "content": "12+" * 400},)})
    found, _ = played(policies["right"], Tools(), Limits(), long)
    assert found.tokens == 0 and found.segments == []
    failed = played(policies["right"], BreakingTools(fails=9), Limits(turns=2, attempts=1))[0]
    groups = [Group(0, [found] * 4), Group(1, [failed] * 4)]
    selection = select(groups, 0, centred, max_staleness=1, length=256)
    assert selection.samples == []
    assert selection.counts == {"empty": 4, "failed": 4, "groups_dropped": 2}


def test_results_of_old_calls_are_left_out_in_segments_of_their_own(policies):
    folding = Folding(keep_rounds=1, reset_tokens=10_000)
    found, tokenizer = played(policies["right"], Tools(), Limits(turns=4, folding=folding))
    said, one = texts(found, tokenizer), turn_tokens(tokenizer)
    assert [sum(segment.sampled) for segment in found.segments] == [2 * one, one, one]
    for number, text in enumerate(said):
        assert text.count("<tool_call>calc") == number + 2  # what was called stays
        assert text.count(OMITTED) == number and text.count("<tool_response>3<") == 1
    assert [message["content"] for message in found.messages if message["role"] == "tool"] == ["3"] * 4


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_reset_begins_again_from_the_prompt_and_keeps_what_was_sampled(policies, rounds):
    """After a single round the prompt is the one that was answered before: that answer still counts."""
    _, tokenizer = started = played(policies["right"], Tools(), Limits(turns=1))
    prompt = len(started[0].segments[0]) - turn_tokens(tokenizer)
    longest, _ = played(policies["right"], Tools(), Limits(turns=rounds + 1))
    folding = Folding(keep_rounds=9, reset_tokens=len(longest.segments[0]) - turn_tokens(tokenizer) - 1)
    found, _ = played(policies["right"], Tools(), Limits(turns=2 * rounds, folding=folding))
    one = turn_tokens(tokenizer)
    assert [sum(segment.sampled) for segment in found.segments] == [rounds * one] * 2
    first, second = found.segments
    assert first.ids[:prompt] == second.ids[:prompt] and not any(second.sampled[:prompt])
    assert second.sampled[prompt] and len(found.messages) == 1 + 4 * rounds
