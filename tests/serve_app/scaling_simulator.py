"""Replicas, streams and Serve's autoscaler in virtual time: what a policy does to a load, in milliseconds of ours.

The policy is called as Serve's controller does, through Serve's own delays and bounds. A replica decodes its batch at
`base_s + slope_s * batch` seconds a token, takes `start_up_s` to come, and reports every two seconds.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray.serve import autoscaling_policy
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serve_app.autoscaling_policy import TpotPolicy
from serve_app.autoscaling_settings import TpotScaling
from serve_app.replica_figures import replica_figures

TICK_S = 0.25
REPORT_EVERY_S = 2.0
MAX_NUM_SEQS = 16
DEPLOYMENT = DeploymentID("model", "app")


@dataclass
class Stream:
    begin: float
    tokens_left: float
    num_tokens: float
    first: float | None = None

    def tpot(self, end: float) -> float:
        assert self.first is not None
        return (end - self.first) / self.num_tokens


@dataclass
class SimulatedReplica:
    replica_id: ReplicaID
    ready_at: float
    noisy_first_s: float
    """For so long its tokens take ten times as long."""
    streams: list[Stream] = field(default_factory=list)
    totals: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("decode_seconds", "decode_sequence_seconds", "decode_tokens"), 0.0)
    )
    points: dict[str, list[TimeStampedValue]] = field(default_factory=dict)

    def tick(self, now: float, seconds_a_token: Callable[[int], float]) -> list[float]:
        """One tick of decoding; returns the time per token of each stream that ended."""
        running = self.streams[:MAX_NUM_SEQS]
        if not running:
            return []
        tpot = seconds_a_token(len(running)) * (10 if now - self.ready_at < self.noisy_first_s else 1)
        for stream in running:
            stream.first = now if stream.first is None else stream.first
            stream.tokens_left -= TICK_S / tpot
        self.totals["decode_seconds"] += TICK_S
        self.totals["decode_sequence_seconds"] += TICK_S * len(running)
        self.totals["decode_tokens"] += TICK_S / tpot * len(running)
        ended = [stream for stream in running if stream.tokens_left <= 0]
        self.streams = [stream for stream in self.streams if stream.tokens_left > 0]
        return [stream.tpot(now + TICK_S) for stream in ended]

    def report(self, now: float, window_s: float) -> None:
        running = min(len(self.streams), MAX_NUM_SEQS)
        waiting = len(self.streams) - running
        engine = self.totals | {
            "running": running,
            "waiting": waiting,
            "waiting_prompt_tokens": 100 * waiting,
            "num_speculative_tokens": 3,
            "total_blocks": 100,
            "free_blocks": 100 - 3 * running,
        }
        for name, value in replica_figures(engine, now - self.ready_at).items():
            points = [*self.points.get(name, []), TimeStampedValue(now, value)]
            self.points[name] = [point for point in points if point.timestamp >= now - window_s]


@dataclass(frozen=True)
class Outcome:
    tpots: list[tuple[float, float]]
    """(End, seconds per token) of every stream."""
    targets: list[tuple[float, int]]
    """(Time, replicas wanted), at each change."""
    waits: list[float]
    """Seconds from a request to its first token."""
    num_lost: int

    def within(self, target_s: float) -> float:
        """The part of streams at or below it."""
        return sum(tpot <= target_s for _, tpot in self.tpots) / len(self.tpots)

    @property
    def counts(self) -> list[int]:
        return [count for _, count in self.targets]


def simulate(
    monkeypatch: pytest.MonkeyPatch,
    rate: Callable[[float], float],
    duration_s: float,
    settings: Mapping[str, Any],
    seconds_a_token: Callable[[int], float] = lambda batch: 0.020 + 0.004 * batch,
    num_tokens: int = 150,
    start_up_s: float = 12.0,
    noisy_first_s: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """`rate`: requests a second by time."""
    scaling = TpotScaling.model_validate({"policy": "tpot", "target_tpot_ms": 60, **settings})
    serve_config = scaling.serve_config(MAX_NUM_SEQS)
    policy = autoscaling_policy._apply_autoscaling_config(TpotPolicy(**serve_config["policy"]["policy_kwargs"]))
    config = AutoscalingConfig(**{name: value for name, value in serve_config.items() if name != "policy"})
    clock = [1000.0]
    monkeypatch.setattr("ray.serve.autoscaling_policy.time.time", lambda: clock[0])
    chance = random.Random(seed)
    begin = clock[0]
    first = scaling.min_replicas if scaling.initial_replicas is None else scaling.initial_replicas
    replicas = [SimulatedReplica(ReplicaID(f"r{index}", DEPLOYMENT), begin, 0) for index in range(first)]
    born, target, state = first, first, dict[str, Any]()
    targets, tpots, queue = [(0.0, target)], list[tuple[float, float]](), list[Stream]()
    streams: list[Stream] = []
    next_report = begin
    for step in range(int(duration_s / TICK_S)):
        clock[0] = now = begin + step * TICK_S
        if chance.random() < rate(now - begin) * TICK_S:
            tokens = num_tokens * chance.uniform(0.5, 1.5)
            queue.append(Stream(now, tokens, tokens))
            streams.append(queue[-1])
        ready = [replica for replica in replicas if replica.ready_at <= now]
        while ready and queue:
            least = min(ready, key=lambda replica: len(replica.streams))
            if len(least.streams) >= 2 * MAX_NUM_SEQS:
                break
            least.streams.append(queue.pop(0))
        for replica in ready:
            tpots += [(now - begin, tpot) for tpot in replica.tick(now, seconds_a_token)]
        if now >= next_report:
            next_report += REPORT_EVERY_S
            for replica in ready:
                replica.report(now, scaling.look_back_period_s)
        context = AutoscalingContext(
            deployment_id=DEPLOYMENT,
            deployment_name="model",
            app_name="app",
            current_num_replicas=len(ready),
            target_num_replicas=target,
            running_replicas=[replica.replica_id for replica in ready],
            total_num_requests=float(len(queue) + sum(len(replica.streams) for replica in ready)),
            total_queued_requests=float(len(queue)),
            aggregated_metrics={},
            raw_metrics={
                name: {replica.replica_id: replica.points[name] for replica in ready if name in replica.points}
                for name in {name for replica in ready for name in replica.points}
            },
            capacity_adjusted_min_replicas=scaling.min_replicas,
            capacity_adjusted_max_replicas=scaling.max_replicas,
            policy_state=state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=now,
            config=config,
        )
        wanted, state = policy(context)
        wanted = max(scaling.min_replicas, min(scaling.max_replicas, wanted))
        if wanted != target:
            targets.append((now - begin, wanted))
        for _ in range(wanted - target):
            replicas.append(SimulatedReplica(ReplicaID(f"r{born}", DEPLOYMENT), now + start_up_s, noisy_first_s))
            born += 1
        for _ in range(target - wanted):
            # Serve drains the one that goes; here its streams move.
            victim = min(replicas, key=lambda replica: (replica.ready_at <= now, len(replica.streams)))
            replicas.remove(victim)
            queue += victim.streams
        target = wanted
    held = {id(stream) for replica in replicas for stream in replica.streams} | {id(stream) for stream in queue}
    lost = sum(id(stream) not in held and stream.tokens_left > 0 for stream in streams)
    waits = [stream.first - stream.begin for stream in streams if stream.first is not None]
    return Outcome(tpots, targets, waits, lost)
