"""Recording CUDA graphs: garbage waits until the recording is over."""

import gc
import weakref

import pytest

from model.capture import without_collection


class Ring:
    """Only the collector frees it, as it holds itself."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def eager_collector():
    """Collects at nearly every allocation."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


def allocate() -> list[list]:
    return [[] for _ in range(100)]


def test_garbage_is_freed_after_the_recording_and_not_in_it(eager_collector):
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), without_collection():
        garbage = weakref.ref(Ring())
        allocate()
        assert garbage() is not None
        raise ZeroDivisionError
    allocate()
    assert garbage() is None


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
