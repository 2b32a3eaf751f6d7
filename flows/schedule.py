"""Run stages as plain Python: each as soon as its inputs are there, independent ones side by side."""

import concurrent.futures
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from flows.executors import Outcome, StageFailed, StageStopped
from pipeline.graph import Stage

Run = Callable[[Stage], Outcome]


@dataclass
class Result:
    """What became of the selected stages."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # stage -> its sentence
    not_started: list[str] = field(default_factory=list)  # since an input failed


def run_graph(
    graph: dict[str, Stage],
    selected: list[str],
    run: Run,
    stop: threading.Event,
    on_failure: Callable[[str, str], None] = lambda stage, sentence: None,
) -> Result:
    """Run the ``selected`` stages with ``run``. Stages with ``accelerator`` run one at a time.

    A stage waits only for those of its inputs that are selected. After a failure whatever does not need the
    failed stage still runs. An exception in here (Ctrl-C) sets ``stop``, waits for the running stages to end
    and passes on.
    """
    accelerator = threading.Lock()
    result = Result()
    waiting = list(selected)
    running: dict[concurrent.futures.Future, str] = {}

    def run_one(stage: Stage) -> Outcome:
        if not stage.accelerator:
            return run(stage)
        with accelerator:
            if stop.is_set():
                raise StageStopped(f"{stage.name} was not started")
            return run(stage)

    with concurrent.futures.ThreadPoolExecutor(max_workers=max(len(selected), 1)) as pool:
        try:
            while waiting or running:
                for name in list(waiting):
                    inputs = set(graph[name].inputs) & set(selected)
                    if inputs <= result.outcomes.keys():
                        waiting.remove(name)
                        running[pool.submit(run_one, graph[name])] = name
                    elif inputs & (result.failures.keys() | set(result.not_started)):
                        waiting.remove(name)
                        result.not_started.append(name)
                if not running:
                    continue
                done, _ = concurrent.futures.wait(
                    running, timeout=0.2, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    name = running.pop(future)
                    try:
                        result.outcomes[name] = future.result()
                    except (StageFailed, StageStopped) as error:
                        result.failures[name] = str(error)
                        on_failure(name, str(error))
        except BaseException:
            stop.set()
            raise
    return result
