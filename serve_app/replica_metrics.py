"""What a replica tells Prometheus: its engine's figures from time to time, and each sequence when it ends."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from replicas.request import RequestOutput
from serve_app import metric_definitions as of
from serve_app.draft_counts import DraftCounts
from serve_app.metric_definitions import Metric
from serve_app.metric_recorder import Recorder
from serve_app.replica_figures import kv_use

COUNTED_STATS = {
    "steps": of.STEPS,
    "preemptions": of.PREEMPTIONS,
    "prefix_cache_queries": of.PREFIX_QUERIES,
    "prefix_cache_hits": of.PREFIX_HITS,
    "generated_tokens": of.GENERATION_TOKENS,
}
"""Sums of EngineStats, and their counters."""


@dataclass(slots=True)
class SequenceTimes:
    """When a sequence came and began, on time.perf_counter."""

    begin: float = field(default_factory=time.perf_counter)
    first: float | None = None
    """Its first token."""

    def saw(self, output: RequestOutput) -> None:
        """Hear of a step."""
        if self.first is None and output.num_output_tokens > 0:
            self.first = time.perf_counter()


class ReplicaMetrics:
    """Of one model's engine."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: dict[tuple[Metric, tuple[str, ...]], float] = {}

    def engine(self, stats: Mapping[str, float], drafts: DraftCounts, k: int) -> None:
        """The figures as of now; sums go on as what they grew by. An engine without one of them does not export it."""
        record = self._recorder
        for name, metric in COUNTED_STATS.items():
            if name in stats:
                self._grown(metric, stats[name])
        if "waiting" in stats:
            record.set(of.RUNNING, stats["running"])
            record.set(of.WAITING, stats["waiting"])
        use = kv_use(stats)
        if use is not None:
            record.set(of.KV_USE, use)
        if "program_seconds" in stats:
            self._grown(of.STEP_SECONDS, stats["program_seconds"], part="program")
            self._grown(of.STEP_SECONDS, stats["busy_seconds"] - stats["program_seconds"], part="host")
        record.set(of.K, k)
        self._grown(of.DRAFTS, drafts.sequences)
        self._grown(of.DRAFT_TOKENS, sum(drafts.drafted))
        self._grown(of.ACCEPTED_TOKENS, sum(drafts.accepted))
        for position, (drafted, accepted) in enumerate(zip(drafts.drafted, drafts.accepted, strict=False)):
            self._grown(of.DRAFTED_AT, drafted, position=str(position))
            self._grown(of.ACCEPTED_AT, accepted, position=str(position))

    def ended(self, times: SequenceTimes, last: RequestOutput | None) -> None:
        """A sequence has ended; `last` is its last news, if there was any. One without a finish_reason was aborted."""
        record, now = self._recorder, time.perf_counter()
        reason = last.finish_reason if last is not None else None
        record.add(of.REQUESTS, 1, finished_reason=reason or "abort")
        if last is None or times.first is None:
            return
        to_first = times.first - times.begin
        record.add(of.PROMPT_TOKENS, last.num_prompt_tokens)
        record.observe(of.TTFT, to_first)
        record.add(of.TTFT_SECONDS, to_first)
        if reason is None:
            return
        record.observe(of.E2E, now - times.begin)
        record.add(of.E2E_SECONDS, now - times.begin)
        record.observe(of.REQUEST_PROMPT_TOKENS, last.num_prompt_tokens)
        record.observe(of.REQUEST_GENERATION_TOKENS, last.num_output_tokens)
        if last.num_output_tokens > 1:
            record.observe(of.TPOT, (now - times.first) / (last.num_output_tokens - 1))

    def _grown(self, metric: Metric, total: float, **tags: str) -> None:
        key = (metric, tuple(tags.values()))
        self._recorder.add(metric, total - self._seen.get(key, 0), **tags)
        self._seen[key] = total
