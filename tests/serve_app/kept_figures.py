"""A Recorder for tests."""

from collections import defaultdict

from serve_app.metric_definitions import Metric


class Kept:
    """A Recorder that keeps what it is given."""

    def __init__(self) -> None:
        self.counters: dict[tuple[Metric, tuple[str, ...]], float] = defaultdict(float)
        self.gauges: dict[Metric, float] = {}
        self.observed: dict[Metric, list[float]] = defaultdict(list)

    def add(self, metric: Metric, value: float, **tags: str) -> None:
        assert (metric.kind, set(tags)) == ("counter", set(metric.tags))
        self.counters[metric, tuple(tags.values())] += value

    def set(self, metric: Metric, value: float) -> None:
        assert metric.kind == "gauge"
        self.gauges[metric] = value

    def observe(self, metric: Metric, value: float) -> None:
        assert metric.kind == "histogram"
        self.observed[metric].append(value)

    def total(self, metric: Metric, *tags: str) -> float:
        return self.counters[metric, tags]
