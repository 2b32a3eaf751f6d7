"""What Prometheus reads at /metrics: counters of this server, and the engine's own figures at that moment."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from model.inference.request import Completion

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    def __init__(self, gauges: Callable[[], dict[str, float]]):
        """``gauges`` gives figures by name whenever the page is read."""
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("glm5_requests", "Requests answered", ["path", "status"], registry=registry)
        self.sampled_tokens = Counter("glm5_sampled_tokens", "Tokens sampled", registry=registry)
        self.cached_tokens = Counter(
            "glm5_cached_prompt_tokens", "Prompt tokens taken from the prefix cache", registry=registry
        )
        self.finished = Counter("glm5_sequences", "Sequences ended, by reason", ["finish"], registry=registry)
        self.first_token = Histogram(
            "glm5_first_token_seconds",
            "From submission to the first token",
            buckets=SECONDS,
            registry=registry,
        )
        self.answered = Histogram(
            "glm5_answer_seconds", "From submission to the last token", buckets=SECONDS, registry=registry
        )
        registry.register(_Gauges(gauges))

    def sequence_ended(self, completion: Completion) -> None:
        self.sampled_tokens.inc(len(completion.tokens))
        self.cached_tokens.inc(completion.cached_tokens)
        self.finished.labels(completion.finish).inc()

    def sequences_left(self, count: int) -> None:
        """Sequences whose client did not wait for their end."""
        self.finished.labels("cancelled").inc(count)

    def page(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]]):
        self._gauges = gauges

    def describe(self) -> list:
        return []  # registered before an engine exists

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"glm5_{name}", name.replace("_", " "), value=value)
