"""Many services at once: shares however long they take, staleness bounded without drops, failing tasks."""

import asyncio
import json
from pathlib import Path

import pytest

from environments.catalog import environments
from pipeline.errors import UserError
from pipeline.recipe.rl import RlSection
from tasks.rl.catalog import CatalogConfig
from tasks.rl.group import Group, Spool
from tasks.rl.groups import centred
from tasks.rl.orchestrator import Control, Orchestrator
from tasks.rl.selection import by_reward
from tasks.rl.service import FAILING_GROUPS, Service
from tasks.rl.supply import Supply
from tasks.rl.trajectory import Segment, Trajectory
from tasks.rl.worker import SPOOL, read_control

SIZE, ROLLOUTS = 4, 2


def trajectory(assignment, reward=1.0, version=0) -> Trajectory:
    segment = Segment()
    segment.read([1])
    segment.sample([2], [-0.5], [version])
    task = assignment.task
    return Trajectory(
        assignment.name, assignment.group, task.id, task.environment, task.family, assignment.mode, [segment],
        reward, "the sandbox failed" if reward is None else "",
    )  # fmt: skip


def service(name: str, weight: float, roll_out, tasks=4, **options) -> Service:
    family = environments()["tools"].make_task
    return Service(name, weight, [(family(name, seed), "off") for seed in range(tasks)], roll_out, **options)


def orchestrator(services, folder: Path, **options) -> Orchestrator:
    options = {"seed": 3, "rollouts": ROLLOUTS, "at_once": 1000, **options}
    return Orchestrator(services, None, Spool(folder / SPOOL), **options)


async def run_until(made: Orchestrator, groups: int, folder: Path, ahead: int = SIZE) -> None:
    """All of the first ``groups``, a few at a time, as a trainer admits them."""
    spool = Spool(folder / SPOOL)

    def control() -> Control:
        finished = len(spool.indices())
        return Control(min(groups, finished + ahead), stop=finished == groups)

    await made.run(control)


async def at_once(assignment, gateway) -> Trajectory:
    return trajectory(assignment)


def test_any_stretch_of_groups_holds_the_shares(tmp_path):
    weights = {"calc": 5.0, "chain": 3.0, "units": 0.0, "calendar": 2.0}
    made = orchestrator([service(name, weight, at_once) for name, weight in weights.items()], tmp_path)
    asyncio.run(run_until(made, 120, tmp_path))
    families = [Spool(tmp_path / SPOOL).get(index).trajectories[0].family for index in range(120)]
    for first in range(100):
        stretch = families[first : first + 20]
        for name, weight in weights.items():
            assert abs(stretch.count(name) - 20 * weight / 10) <= 2, (first, name)
    figures = made.figures()
    for name, weight in weights.items():
        assert figures[name]["share"] == pytest.approx(weight / 10, abs=0.02)
        assert figures[name]["share_wanted"] == weight / 10
    assert figures["calc"]["rollouts"] == ROLLOUTS * families.count("calc")
    assert figures["calc"]["reward_mean"] == 1.0 and figures["calc"]["rollouts_per_min"] > 0


@pytest.mark.parametrize("push_every", [1, 2])
def test_slow_tasks_are_trained_as_often_as_quick_ones(tmp_path, push_every):
    """The slow kind ends only when the trainer has nothing else to take: whoever takes what is finished first
    would train on it last, and find it too old.
    """
    section = RlSection(
        steps=20, optimizer={"muon_lr": 0.1, "adamw_lr": 0.1}, families={"tools/calc": 1.0}, modes={"off": 1},
        sequence_length=64, micro_batch=1, push_every_steps=push_every,
        rollouts={"prompts_per_step": SIZE, "rollouts_per_prompt": ROLLOUTS, "max_new_tokens": 8, "ahead": 3,
                  "max_staleness": 3 // push_every + 1},
    )  # fmt: skip
    version, held = 0, {}  # of slow groups what lets them end

    async def quick(assignment, gateway):
        return trajectory(assignment, len(assignment.name) % 2, version)

    async def slow(assignment, gateway):
        began = version
        await held.setdefault(assignment.group, asyncio.Event()).wait()
        return trajectory(assignment, len(assignment.name) % 2, began)

    supply = Supply(section, start=tmp_path, scratch=tmp_path, seed=0, services=[], catalog=CatalogConfig())
    services = [service("calc", 3.0, quick), service("chain", 1.0, slow)]
    select = by_reward(section, centred)

    async def train() -> tuple[list[list[Group]], int]:
        nonlocal version
        stop = False
        made = orchestrator(services, tmp_path)
        rolling = asyncio.create_task(
            made.run(lambda: Control(**{**read_control(tmp_path).__dict__, "stop": stop}))
        )
        done, steps, stale = set(), [], 0
        for step in range(section.steps):
            supply.want(step, done)
            while (groups := supply.ready(step, done)) is None:
                await settled(tmp_path, held)
                if supply.ready(step, done) is None:
                    next(event for event in held.values() if not event.is_set()).set()
            stale += select(groups, version).counts["stale"]
            done |= {group.index for group in groups}
            steps.append(groups)
            version = (step + 1) // push_every
        stop = True
        await rolling
        return steps, stale

    steps, stale = asyncio.run(train())
    assert stale == 0
    assert sorted(g.index for groups in steps for g in groups) == list(range(section.steps * SIZE))
    families = [[group.trajectories[0].family for group in groups] for groups in steps]
    assert sum(row.count("chain") for row in families) == pytest.approx(section.steps * SIZE / 4, abs=1)
    half = sum(row.count("chain") for row in families[: section.steps // 2])
    assert half >= section.steps * SIZE / 8 - 3 * SIZE / 4 - 1  # behind by what may be under way, not by more
    ages = [
        t.staleness(step // push_every)
        for step, groups in enumerate(steps)
        for g in groups
        for t in g.trajectories
    ]
    assert max(ages) == section.rollouts.max_staleness


async def settled(folder: Path, held: dict[str, asyncio.Event]) -> None:
    """Until every group that may run is in the spool, except those that are held up."""
    wanted = read_control(folder)
    running = set(range(wanted.done_below, wanted.admit)) - wanted.done
    while True:
        waiting = {int(name.removeprefix("group-")) for name, event in held.items() if not event.is_set()}
        if running <= waiting | set(Spool(folder / SPOOL).indices()):
            return
        await asyncio.sleep(0.01)


def test_hundreds_at_once_and_a_scarce_kind_beside_them(tmp_path):
    running, most, full = {"calc": 0, "units": 0}, {"calc": 0, "units": 0}, asyncio.Event()
    figures = {}

    async def roll_out(assignment, gateway):
        name = assignment.task.family
        running[name] += 1
        most[name] = max(most[name], running[name])
        if running["calc"] == 400 and running["units"] == 5:
            figures.update(json.loads(json.dumps(made.figures())))
            full.set()
        await full.wait()
        running[name] -= 1
        return trajectory(assignment)

    services = [service("calc", 4.0, roll_out), service("units", 1.0, roll_out, at_once=5)]
    made = orchestrator(services, tmp_path, rollouts=8, at_once=405)

    asyncio.run(run_until(made, 80, tmp_path, ahead=80))
    assert most == {"calc": 400, "units": 5}
    assert (figures["calc"]["rollouts_running"], figures["units"]["rollouts_running"]) == (400, 5)
    assert len(Spool(tmp_path / SPOOL).indices()) == 80


def test_a_task_that_is_never_judged_is_given_up(tmp_path, capsys):
    """An agent may have learnt to kill what judges it."""
    bad = environments()["tools"].make_task("calc", 1).id

    async def roll_out(assignment, gateway):
        return trajectory(assignment, None if assignment.task.id == bad else 1.0)

    made = orchestrator([service("calc", 1.0, roll_out, at_once=1)], tmp_path, at_once=1)
    asyncio.run(run_until(made, 60, tmp_path))
    tasks = [Spool(tmp_path / SPOOL).get(index).trajectories[0].task for index in range(60)]
    figures = made.figures()["calc"]
    assert figures["given_up"] == [bad] and tasks[-30:].count(bad) == 0
    assert figures["failed"] == figures["failed_by_task"][bad] == figures["failed_by_family"]["tools/calc"]
    assert figures["failed"] == ROLLOUTS * tasks.count(bad) >= FAILING_GROUPS * ROLLOUTS
    printed = capsys.readouterr().out
    assert printed.count(f"warning: {bad} is given up, ") == 1 and "the sandbox failed" in printed


def test_a_worker_in_another_s_place_goes_on_from_its_memory(tmp_path):
    bad = environments()["tools"].make_task("calc", 1).id
    begun = []

    async def roll_out(assignment, gateway):
        begun.append(assignment.task.id)
        return trajectory(assignment, None if assignment.task.id == bad else 1.0)

    first, second = (service("calc", 1.0, roll_out, at_once=1) for _ in range(2))
    asyncio.run(run_until(orchestrator([first], tmp_path, at_once=1), 30, tmp_path))
    second.remember(json.loads(json.dumps(first.memory())))
    begun.clear()
    asyncio.run(run_until(made := orchestrator([second], tmp_path, at_once=1), 60, tmp_path))
    assert len(begun) == 30 * ROLLOUTS and bad not in begun
    figures = made.figures()["calc"]
    assert figures["given_up"] == [bad] and figures["failed"] == first.figures()["failed"]
    assert figures["groups"] == 60 and figures["rollouts"] == 60 * ROLLOUTS and figures["running"] == 0
    assert figures["reward"] == 60 * ROLLOUTS - figures["failed"]


def test_failures_now_and_then_do_not_cost_a_task(tmp_path):
    async def roll_out(assignment, gateway):
        return trajectory(assignment, None if assignment.name.endswith("/1") else 0.0)

    made = orchestrator([service("calc", 1.0, roll_out)], tmp_path)
    asyncio.run(run_until(made, 20, tmp_path))
    assert made.figures()["calc"]["given_up"] == [] and made.figures()["calc"]["failed"] == 20


def test_where_nothing_is_judged_the_worker_says_so(tmp_path):
    async def roll_out(assignment, gateway):
        return trajectory(assignment, None)

    made = orchestrator(
        [service("calc", 1.0, roll_out), service("units", 1.0, roll_out)], tmp_path, at_once=1
    )
    with pytest.raises(UserError, match="every task was given up"):
        asyncio.run(run_until(made, 400, tmp_path))
