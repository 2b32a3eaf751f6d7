"""Order and parallelism of the plain scheduler, with stages that are Python functions here."""

import random
import threading
import time

import pytest

from flows.executors import Outcome, StageFailed
from flows.schedule import run_graph
from pipeline.graph import Stage, ancestors
from tests.waiting import PATIENCE


def make_graph(rng: random.Random, size: int) -> dict[str, Stage]:
    graph: dict[str, Stage] = {}
    for number in range(size):
        earlier = list(graph)
        inputs = tuple(rng.sample(earlier, min(len(earlier), rng.randrange(3))))
        graph[f"s{number}"] = Stage(f"s{number}", "m", inputs, (), (), "", accelerator=rng.random() < 0.3)
    return graph


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_keep_order_and_share_one_accelerator(seed):
    rng = random.Random(seed)
    graph = make_graph(rng, 12)
    selected = [name for name in graph if rng.random() < 0.8]
    failing = rng.choice(selected) if seed % 2 else None
    lock, ended, on_accelerator, busiest = threading.Lock(), set(), [0], [0]

    def run(stage: Stage) -> Outcome:
        with lock:
            assert {name for name in stage.inputs if name in selected} <= ended
            on_accelerator[0] += stage.accelerator
            busiest[0] = max(busiest[0], on_accelerator[0])
        time.sleep(0.01)
        with lock:
            on_accelerator[0] -= stage.accelerator
            if stage.name == failing:
                raise StageFailed("broken", killed=False)
            ended.add(stage.name)
        return Outcome(stage.name, False, 0.0, {})

    result = run_graph(graph, selected, run, threading.Event())
    assert busiest[0] <= 1
    # What is behind the failed stage through selected stages does not start; all else is done.
    blocked = set()
    for name in selected:
        if blocked & set(graph[name].inputs) or failing in graph[name].inputs:
            blocked.add(name)
    assert set(result.not_started) == blocked
    assert set(result.failures) == ({failing} if failing else set())
    assert set(result.outcomes) == set(selected) - blocked - {failing}
    assert all(failing in ancestors(graph, name) for name in blocked)


def test_independent_stages_run_at_the_same_time():
    graph = {name: Stage(name, "m", (), (), (), "") for name in "abc"}
    together = threading.Barrier(3, timeout=PATIENCE)

    def run(stage: Stage) -> Outcome:
        together.wait()  # passes only when all three are here
        return Outcome(stage.name, False, 0.0, {})

    assert len(run_graph(graph, list(graph), run, threading.Event()).outcomes) == 3


def test_an_exception_of_the_program_stops_the_others_and_passes_on():
    graph = {name: Stage(name, "m", (), (), (), "") for name in "ab"}
    stop = threading.Event()

    def run(stage: Stage) -> Outcome:
        if stage.name == "a":
            raise ZeroDivisionError
        assert stop.wait(PATIENCE)
        raise StageFailed("stopped", killed=False)

    with pytest.raises(ZeroDivisionError):
        run_graph(graph, list(graph), run, stop)
