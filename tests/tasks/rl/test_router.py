"""Consistent hashing: rollouts stay, few move when engines come and go, none is overrun."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.rl.router import NoEngine, Router

ROLLOUTS = [f"rollout-{number}" for number in range(20_000)]


def ring(count, spare=0.25):
    router = Router(spare)
    for number in range(count):
        router.join(f"http://127.0.0.1:{8000 + number}")
    return router


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_few_move_when_an_engine_joins_or_leaves(count):
    router = ring(count)
    before = {rollout: router.owner(rollout) for rollout in ROLLOUTS}
    router.join("newcomer")
    joined = {rollout: router.owner(rollout) for rollout in ROLLOUTS}
    moved = [rollout for rollout in ROLLOUTS if joined[rollout] != before[rollout]]
    assert {joined[rollout] for rollout in moved} == {"newcomer"}, "none moves between the others"
    assert len(moved) / len(ROLLOUTS) < 1 / (count + 1) + 0.05
    router.leave("newcomer")
    assert {rollout: router.owner(rollout) for rollout in ROLLOUTS} == before
    left = router.engines[0]
    router.leave(left)
    moved = [rollout for rollout in ROLLOUTS if router.owner(rollout) != before[rollout]]
    assert moved == [rollout for rollout in ROLLOUTS if before[rollout] == left]
    assert len(moved) / len(ROLLOUTS) < 1 / count + 0.05


def test_a_rollout_stays_while_it_runs():
    router = ring(2)
    first = router.route("a")
    for number in range(50):
        router.route(f"other-{number}")
    router.join("newcomer")
    assert router.route("a") == first
    assert "a" in router.leave(first)
    assert router.route("a") != first


def test_an_engine_gets_no_more_than_its_share_and_a_little():
    router = ring(4, spare=0.25)
    for number, rollout in enumerate(ROLLOUTS[:400]):
        router.route(rollout)
        assert max(router.load().values()) <= -(-(number + 1) * 1.25 // 4)
    assert sum(router.load().values()) == 400
    for rollout in ROLLOUTS[:400]:
        router.release(rollout)
    assert set(router.load().values()) == {0}


def test_without_engines_it_says_so():
    router = ring(1)
    router.route("a")
    assert router.leave(router.engines[0]) == ["a"]
    with pytest.raises(NoEngine, match="no engine is registered"):
        router.route("a")
    router.release("unknown")
    assert router.leave("unknown") == []


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from(["join", "leave", "route", "release"]), st.integers(0, 5)), max_size=60
    )
)
def test_any_order_of_events_keeps_the_books(events):
    router, running = Router(), set()
    for verb, number in events:
        if verb == "join":
            router.join(f"engine-{number}")
        elif verb == "leave":
            running -= set(router.leave(f"engine-{number}"))
        elif verb == "route" and router.engines:
            assert router.route(f"r{number}") in router.engines
            running.add(f"r{number}")
        elif verb == "release":
            router.release(f"r{number}")
            running.discard(f"r{number}")
        assert sum(router.load().values()) == len(running)
