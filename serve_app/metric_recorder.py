"""Metrics of one model, as Ray exports them: each with the tags of the Serve replica that runs here."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ray.serve import metrics

from serve_app.metric_definitions import Metric

MODEL_TAG = "model_name"


class Recorder(Protocol):
    """Takes values of metrics."""

    def add(self, metric: Metric, value: float, **tags: str) -> None:
        """To a counter: `value` more."""
        ...

    def set(self, metric: Metric, value: float) -> None:
        """A gauge."""
        ...

    def observe(self, metric: Metric, value: float) -> None:
        """Into a histogram."""
        ...


class RayRecorder:
    """A Recorder over ray.serve.metrics."""

    def __init__(self, definitions: Sequence[Metric], model: str) -> None:
        self._tags = {MODEL_TAG: model}
        self._metrics: Mapping[Metric, Any] = {metric: _made(metric) for metric in definitions}

    def add(self, metric: Metric, value: float, **tags: str) -> None:
        if value > 0:  # Ray refuses 0.
            self._metrics[metric].inc(value, tags=self._tags | tags)

    def set(self, metric: Metric, value: float) -> None:
        self._metrics[metric].set(value, tags=dict(self._tags))

    def observe(self, metric: Metric, value: float) -> None:
        # Ray refuses 0 here too; a time of 0 is one too short to measure.
        self._metrics[metric].observe(max(value, 1e-9), tags=dict(self._tags))


def _made(metric: Metric) -> Any:
    # Ray's signature says a tuple of one.
    tags: Any = (MODEL_TAG, *metric.tags)
    match metric.kind:
        case "counter":
            return metrics.Counter(metric.name, metric.meaning, tags)
        case "gauge":
            return metrics.Gauge(metric.name, metric.meaning, tags)
        case "histogram":
            return metrics.Histogram(metric.name, metric.meaning, list(metric.boundaries), tags)
