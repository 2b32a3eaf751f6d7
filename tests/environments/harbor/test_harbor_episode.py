"""An agent's episode at a Harbor task: observations, ends, verdicts, and a sandbox that is always closed."""

import asyncio
import json

import pytest

from environments.episode import answer, call_message
from environments.harbor import rewards
from environments.harbor.environment import HarborTasks
from environments.harbor.episode import SENTINEL, HarborEpisode, shortened
from environments.harbor.task import load_task
from environments.harbor.verifier import verify
from environments.interface import MODES, Task, play
from environments.sandbox.interface import SandboxError
from pipeline.errors import UserError


class Watched:
    """A backend that remembers its sandboxes, and can fail."""

    def __init__(self, backend, fail: bool = False) -> None:
        self._backend, self._fail = backend, fail
        self.name, self.build = backend.name, backend.build
        self.open = self.started = 0

    async def start(self, image, limits):
        if self._fail:
            raise SandboxError("there is no room")
        sandbox = await self._backend.start(image, limits)
        self.open, self.started = self.open + 1, self.started + 1
        closing = sandbox.close

        async def close():
            sandbox.close = closing
            await closing()
            self.open -= 1

        sandbox.close = close
        return sandbox


def bash(command: str) -> dict:
    return call_message(None, "bash", command=command)


def one_task(folder, backend) -> tuple[HarborTasks, Task]:
    environment = HarborTasks(folder.parent, backend)
    [task] = environment.tasks()
    return environment, task


async def said(episode: HarborEpisode, message: dict) -> tuple[str, bool]:
    step = await episode.step(message)
    return step.messages[-1]["content"] if step.messages else "", step.done


@pytest.mark.parametrize("mode", MODES)
def test_the_oracle_solves_the_task_in_two_messages(backend, write_task, mode):
    watched = Watched(backend)
    environment, task = one_task(write_task(), watched)
    assert task == Task.from_record(json.loads(json.dumps(task.to_record())))
    answers = environment.oracle(task, mode)
    messages, verdict = asyncio.run(play(environment, task, answers))
    assert verdict.reward == 1 and verdict.reason == "the tests pass"
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert all(("reasoning_content" in message) == (mode != "off") for message in answers)
    assert (watched.open, watched.started) == (0, 2)


def test_commands_see_files_but_not_the_last_ones_variables(backend, write_task):
    environment, task = one_task(write_task(), backend)

    async def play_on():
        episode = environment.episode()
        try:
            await episode.reset(task)
            assert await said(episode, bash("pwd; cat numbers.txt")) == (
                "exit status 0\n/app\n27\n73\n",
                False,
            )
            await said(episode, bash("cd /tmp; x=1; export x; echo kept > /app/kept"))
            assert (await said(episode, bash("echo $x; cat kept; exit 3")))[0] == "exit status 3\n\nkept\n"
            long = (await said(episode, bash("seq 1 9000")))[0]
            assert long.startswith("exit status 0\n1\n2\n") and long.endswith("8999\n9000\n")
            assert "characters left out" in long and len(long) < 10_100
            call = bash("true")
            call["tool_calls"][0]["id"] = "call-7"
            assert (await episode.step(call)).messages[0]["tool_call_id"] == "call-7"
            step = await episode.step(bash(f"echo {SENTINEL}"))
            assert step.done and episode.end == "submitted"
            with pytest.raises(RuntimeError, match="over"):
                await episode.step(bash("true"))
            assert (await episode.verify()).reward == 0
        finally:
            await episode.close()

    asyncio.run(play_on())


def calls(calls) -> dict:
    return {"role": "assistant", "content": "", "tool_calls": calls}


def function(name: str, arguments) -> dict:
    return calls([{"function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    "message",
    [
        answer(None, "I am done."),
        function("python", {}),
        function("bash", "{"),
        function("bash", "[1]"),
        function("bash", {"command": 1}),
        function("bash", {"cmd": "ls"}),
        function("bash", {"command": "a\0b"}),
        calls(["bash"]),
        calls("bash"),
    ],
)
def test_three_messages_without_a_usable_call_end_it(backend, write_task, message):
    environment, task = one_task(write_task(), backend)

    async def play_on():
        episode = environment.episode()
        try:
            await episode.reset(task)
            dones = [
                (await said(episode, each))[1]
                for each in (message, message, bash("ls"), message, message, message)
            ]
            assert dones == [False] * 5 + [True]
            assert episode.end == "3 messages in a row without a usable call"
            assert (await episode.verify()).reward == 0
        finally:
            await episode.close()

    asyncio.run(play_on())


def test_what_was_done_until_the_time_is_over_is_graded(backend, write_task):
    environment, task = one_task(write_task(), backend)

    async def play_on():
        episode = environment.episode()
        try:
            await episode.reset(task)
            await episode.step(environment.oracle(task, "off")[0])
            assert 0 < episode._seconds < 60
            episode._seconds = 0.5
            text, done = await said(episode, bash("sleep 100"))
            assert done and "killed: it ran longer than 0.5 s" in text
            assert episode.end == "the commands took the agent's whole time"
            assert (await episode.verify()).reward == 1
        finally:
            await episode.close()

    asyncio.run(play_on())


def test_what_was_done_in_all_steps_is_graded(backend, write_task):
    environment, task = one_task(write_task(), backend)

    async def play_on():
        episode = HarborEpisode(environment.root, backend, max_steps=1)
        try:
            await episode.reset(task)
            assert (await episode.step(environment.oracle(task, "off")[0])).done and episode.end == "1 steps"
            assert (await episode.verify()).reward == 1
        finally:
            await episode.close()

    asyncio.run(play_on())


def test_a_sandbox_that_fails_gives_no_reward(backend, write_task):
    environment, task = one_task(write_task(), Watched(backend, fail=True))
    messages, verdict = asyncio.run(play(environment, task, environment.oracle(task, "off")))
    assert verdict.reward is None and "there is no room" in verdict.reason


def test_an_image_that_cannot_be_built_gives_no_reward(backend, write_task):
    folder = write_task(changes={"environment/Dockerfile": "FROM python:3.11-slim-bookworm\nRUN exit 7\n"})
    environment, task = one_task(folder, backend)
    verdict = asyncio.run(play(environment, task, environment.oracle(task, "off")))[1]
    assert verdict.reward is None and "7" in verdict.reason


def test_the_sandbox_is_closed_when_the_episode_is_cancelled(backend, write_task):
    slow = write_task(changes={"tests/test.sh": "#!/bin/bash\nsleep 100\n"})
    watched = Watched(backend)
    environment, task = one_task(slow, watched)

    async def cancelled(answers, sandboxes):
        playing = asyncio.ensure_future(play(environment, task, answers))
        while watched.started < sandboxes:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert watched.open == 0

    asyncio.run(cancelled([bash("sleep 100")], 1))
    asyncio.run(cancelled([call_message(None, "submit")], 3))


@pytest.mark.parametrize(
    ("script", "outcome", "reward"),
    [
        ("sleep 100", rewards.TIMEOUT, None),
        ("exit 0", rewards.MISSING, None),
        (": > /logs/verifier/reward.txt", rewards.EMPTY, None),
        ("echo nan > /logs/verifier/reward.txt", rewards.NOT_FINITE, None),
        ("echo yes > /logs/verifier/reward.txt", rewards.NOT_NUMERIC, None),
        ("echo 3 > /logs/verifier/reward.txt", rewards.OUT_OF_RANGE, None),
        ("yes 1 | head -c 100000 > /logs/verifier/reward.txt", rewards.TOO_LONG, None),
        ('echo \'{"reward": 0.5, "x": 3}\' > /logs/verifier/reward.json; exit 9', rewards.GRADED, 0.5),
        ("echo 1 > /logs/verifier/reward.txt; kill -9 $$", rewards.KILLED, None),
    ],
)
def test_each_end_of_the_tests_has_its_outcome(backend, write_task, script, outcome, reward):
    folder = write_task(changes={"tests/test.sh": f"#!/bin/bash\nmkdir -p /logs/verifier\n{script}\n"})
    if outcome == rewards.TIMEOUT:
        text = (folder / "task.toml").read_text()
        (folder / "task.toml").write_text(text.replace("timeout_sec = 30", "timeout_sec = 2"))
    task = load_task(folder)

    async def graded():
        image = await backend.build(task.environment)
        async with await backend.start(image, task.limits) as sandbox:
            return await verify(task, sandbox, image, backend)

    grading = asyncio.run(graded())
    assert (grading.outcome, grading.reward) == (outcome, reward), grading


def test_a_task_that_changed_is_refused(backend, write_task):
    folder = write_task()
    environment, task = one_task(folder, backend)
    (folder / "tests/check.py").write_text("")
    with pytest.raises(UserError, match="was changed after task"):
        asyncio.run(play(environment, task, []))
    with pytest.raises(UserError, match="a folder outside"):
        outside = {**task.to_record(), "truth": {**task.truth, "folder": "../.."}}
        asyncio.run(play(environment, Task.from_record(outside), []))


def test_families_are_held_out_as_a_whole(write_task, tmp_path):
    for number, (family, heldout) in enumerate([("logs", ""), ("logs", ""), ("trees", "heldout = true")]):
        text = f'[task]\nname = "m/t{number}"\n[metadata]\nfamily = "{family}"\n{heldout}\n'
        write_task(f"t{number}", {"task.toml": text})
    environment = HarborTasks(tmp_path / "tasks")
    assert environment.families + environment.evaluation_only == ("logs", "trees")
    assert "trees" in environment.evaluation_only
    made = environment.make_task("trees", 5, heldout=True)
    assert made.heldout and made.family == "trees" and made.truth["folder"] == "t2"
    with pytest.raises(UserError, match="has no family 'x'"):
        environment.make_task("x", 0)
    with pytest.raises(UserError, match="has no training task"):
        environment.make_task("trees", 0)


def test_observations_are_cut_in_the_middle():
    assert shortened("a" * 10_000) == "a" * 10_000
    cut = shortened("a" * 6000 + "b" * 6000)
    assert cut == "a" * 5000 + "\n(2000 characters left out)\n" + "b" * 5000
