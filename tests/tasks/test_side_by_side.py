"""Pieces run at once on a CPU: results in order, threads shared out and given back, errors passed on."""

import threading
import time

import pytest
import torch

from tasks.side_by_side import side_by_side

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_pieces_meet_and_come_back_in_order(two_threads):
    meeting = threading.Barrier(2, timeout=120)  # passes only when two pieces are under way at once

    def piece(number):
        meeting.wait()
        return number, torch.get_num_threads()

    assert list(side_by_side(piece, [3, 1, 2, 0], CPU)) == [(3, 1), (1, 1), (2, 1), (0, 1)]
    assert torch.get_num_threads() == 2


def test_one_thread_runs_one_after_another():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = list(side_by_side(lambda _: threading.current_thread(), [0, 1], CPU))
        assert here == [threading.current_thread()] * 2
    finally:
        torch.set_num_threads(before)


def test_an_error_ends_it_and_nothing_new_is_begun(two_threads):
    begun = []

    def piece(number):
        begun.append(number)
        if number == 0:
            raise ValueError("piece 0")
        time.sleep(0.1)  # so all of them take a minute, and the error is there at once

    with pytest.raises(ValueError, match="piece 0"):
        list(side_by_side(piece, range(1000), CPU))
    assert len(begun) < 1000
    assert torch.get_num_threads() == 2
