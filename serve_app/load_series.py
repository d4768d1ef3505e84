"""From what replicas reported over time to the load that a decision is made of. Pure, and without Ray."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve_app.scaling_decision import DeploymentLoad, ReplicaLoad

Series = Sequence[tuple[float, float]]
"""(Seconds, value), ascending."""
MIN_DECODE_TOKENS = 8
"""Fewer say nothing about the time per token."""
NOTICED_RISE = 0.25
"""Of the earlier half's demand: a smaller rise is noise of a steady load."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The series of one replica, by the names of serve_app.replica_figures."""

    series: Mapping[str, Series]

    @property
    def time(self) -> float:
        """Of the last point."""
        return self.series["running"][-1][0]

    def last(self, name: str) -> float:
        """The last value; 0 of a figure that the engine does not have."""
        points = self.series.get(name)
        return points[-1][1] if points else 0.0

    def at(self, name: str, time: float) -> float:
        """The value at `time`; 0 before the first."""
        points = self.series.get(name, ())
        index = bisect_right(points, time, key=lambda point: point[0])
        return points[index - 1][1] if index else 0.0

    def demand(self, time: float) -> float:
        """Sequences, running and waiting."""
        return self.at("running", time) + self.at("waiting", time)

    def load(self, window_s: float, ignore_first_s: float) -> ReplicaLoad:
        """As of the last point, with the time per token of the `window_s` before it."""
        batch_size = tpot_s = None
        begin = self._begin(window_s, ignore_first_s)
        if begin is not None:
            tokens, sequence_seconds, seconds = (
                self.last(name) - self.at(name, begin)
                for name in ("decode_tokens", "decode_sequence_seconds", "decode_seconds")
            )
            if tokens >= MIN_DECODE_TOKENS and seconds > 0:
                batch_size, tpot_s = sequence_seconds / seconds, sequence_seconds / tokens
        return ReplicaLoad(
            running=self.last("running"),
            waiting=self.last("waiting"),
            waiting_prompt_tokens=self.last("waiting_prompt_tokens"),
            kv_use=self.last("kv_use"),
            batch_size=batch_size,
            tpot_s=tpot_s,
            num_speculative_tokens=int(self.last("num_speculative_tokens")),
        )

    def _begin(self, window_s: float, ignore_first_s: float) -> float | None:
        """The first point that counts, and that another one follows."""
        ages = self.series.get("uptime_s", ())
        times = [time for time, age in ages if age >= ignore_first_s and time >= self.time - window_s]
        return times[0] if len(times) > 1 else None


def deployment_load(
    reports: Sequence[ReplicaReport],
    num_running: int,
    target_replicas: int,
    queued: float,
    window_s: float,
    ignore_first_s: float,
    tpot_window_s: float,
) -> DeploymentLoad:
    """The load of `num_running` replicas, of which those that have told something have one of `reports`."""
    times = sorted({time for report in reports for time, _ in report.series["running"]})
    times = [time for time in times if time >= times[-1] - window_s]
    demands = [sum(report.demand(time) for report in reports) for time in times]
    return DeploymentLoad(
        replicas=tuple(report.load(tpot_window_s, ignore_first_s) for report in reports),
        num_silent=num_running - len(reports),
        queued=queued,
        target_replicas=target_replicas,
        demand_slope=_slope(times, demands),
        peak_demand=max(demands, default=0.0) + queued,
    )


def _slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Rise a second, from the middle of the earlier half to that of the later; 0 if it may be noise, or is a fall."""
    half = len(times) // 2
    if half < 2:
        return 0.0
    early, late = sum(values[:half]) / half, sum(values[-half:]) / half
    apart = sum(times[-half:]) / half - sum(times[:half]) / half
    if late - early < max(1.0, NOTICED_RISE * early):
        return 0.0
    return (late - early) / apart
