"""Which engine a rollout goes to: always the same one, where its prefix is cached (paper section 4.1.2).

Engines stand on a ring of hashes, each at many points; a rollout belongs to the first point after its own
hash. When an engine joins or leaves, only the rollouts between its points move. An engine that has more
than its share of what runs passes new rollouts on to the next point (consistent hashing with bounded loads,
arXiv 1608.01350); a rollout that is under way stays.
"""

import hashlib
import math
from bisect import bisect_right, insort

POINTS = 512  # of an engine: its share of the ring is 1/N within a few per cent


class NoEngine(RuntimeError):
    """No engine is left to route to."""


class Router:
    """Not for several threads at once."""

    def __init__(self, spare: float = 0.25):
        """``spare``: how far an engine's load may exceed the mean before new rollouts go elsewhere."""
        self._spare = spare
        self._ring: list[tuple[int, str]] = []
        self._running: dict[str, set[str]] = {}  # rollouts by engine
        self._placed: dict[str, str] = {}  # engine by rollout

    @property
    def engines(self) -> list[str]:
        return list(self._running)

    def join(self, engine: str) -> None:
        if engine in self._running:
            return
        self._running[engine] = set()
        for point in range(POINTS):
            insort(self._ring, (_hash(f"{engine}#{point}"), engine))

    def leave(self, engine: str) -> list[str]:
        """Take an engine off the ring. Returns its rollouts, which the next ``route`` places anew."""
        self._ring = [point for point in self._ring if point[1] != engine]
        homeless = sorted(self._running.pop(engine, ()))
        for rollout in homeless:
            del self._placed[rollout]
        return homeless

    def route(self, rollout: str) -> str:
        """The engine of a rollout, the same until it ends or its engine leaves. Raises ``NoEngine``."""
        if rollout not in self._placed:
            engine = self._free_engine(rollout)
            self._placed[rollout] = engine
            self._running[engine].add(rollout)
        return self._placed[rollout]

    def release(self, rollout: str) -> None:
        """The rollout has ended."""
        engine = self._placed.pop(rollout, None)
        if engine is not None:
            self._running[engine].discard(rollout)

    def load(self) -> dict[str, int]:
        """Running rollouts of each engine."""
        return {engine: len(rollouts) for engine, rollouts in self._running.items()}

    def owner(self, rollout: str) -> str:
        """Whose the rollout is by its hash alone. Raises ``NoEngine``."""
        return next(self._from(rollout))

    def _free_engine(self, rollout: str) -> str:
        most = math.ceil((1 + self._spare) * (len(self._placed) + 1) / max(len(self._running), 1))
        for engine in self._from(rollout):
            if len(self._running[engine]) < most:
                return engine
        raise AssertionError("one engine always has no more than the mean")

    def _from(self, rollout: str):
        """Engines in the order in which the ring meets them after the rollout's hash, each once."""
        if not self._ring:
            raise NoEngine("no engine is registered: all have left or none has started")
        start = bisect_right(self._ring, (_hash(rollout), ""))
        seen = set()
        for place in range(len(self._ring)):
            engine = self._ring[(start + place) % len(self._ring)][1]
            if engine not in seen:
                seen.add(engine)
                yield engine


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
