"""What a replica exports."""

import asyncio
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError

from replicas.request import SamplingParams
from replicas.scheduling.k_policy import DraftFeedback
from serve_app import metric_definitions as of
from serve_app.draft_counts import DraftCounts
from serve_app.generation import GenerationJob
from serve_app.metric_definitions import METRICS, Metric
from serve_app.replica_metrics import ReplicaMetrics
from tests.serve_app.fake_engine import LocalClient
from tests.serve_app.kept_figures import Kept
from tests.serve_app.local_site import Site

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
STATS = {
    "running": 3.0,
    "waiting": 2.0,
    "free_blocks": 25.0,
    "total_blocks": 100.0,
    "steps": 10.0,
    "generated_tokens": 40.0,
    "busy_seconds": 2.0,
    "program_seconds": 1.5,
    "prefix_cache_queries": 64.0,
    "prefix_cache_hits": 32.0,
    "preemptions": 1.0,
}


def test_the_engine_s_sums_are_exported_as_what_they_grew_by() -> None:
    kept, drafts = Kept(), DraftCounts()
    metrics = ReplicaMetrics(kept)
    drafts.add(DraftFeedback(2, (2, 1), (1, 1)))
    metrics.engine(STATS, drafts, 3)
    drafts.add(DraftFeedback(4, (4, 4, 4), (3, 2, 0)))
    metrics.engine(STATS | {"steps": 15.0, "busy_seconds": 3.0, "program_seconds": 2.25, "running": 0.0}, drafts, 2)
    assert kept.gauges == {of.RUNNING: 0, of.WAITING: 2, of.KV_USE: 0.75, of.K: 2}
    assert (kept.total(of.STEPS), kept.total(of.GENERATION_TOKENS), kept.total(of.PREEMPTIONS)) == (15, 40, 1)
    assert (kept.total(of.PREFIX_QUERIES), kept.total(of.PREFIX_HITS)) == (64, 32)
    assert (kept.total(of.STEP_SECONDS, "program"), kept.total(of.STEP_SECONDS, "host")) == (2.25, 0.75)
    assert [kept.total(metric) for metric in (of.DRAFTS, of.DRAFT_TOKENS, of.ACCEPTED_TOKENS)] == [6, 15, 7]
    assert [kept.total(of.DRAFTED_AT, position) for position in "012"] == [6, 5, 4]
    assert [kept.total(of.ACCEPTED_AT, position) for position in "012"] == [4, 3, 0]


def test_an_engine_that_does_not_know_its_blocks_exports_everything_else() -> None:
    """VLLM may say 0; dividing by it would fail the health check, and Serve would replace a good replica."""
    kept = Kept()
    ReplicaMetrics(kept).engine(STATS | {"free_blocks": 0.0, "total_blocks": 0.0}, DraftCounts(), 3)
    assert kept.gauges == {of.RUNNING: 3, of.WAITING: 2, of.K: 3}
    assert kept.total(of.STEPS) == 10


def local(kept: Kept, pieces: list[str | None]) -> LocalClient:
    client = Site(pieces=pieces).client
    client.replica._metrics = ReplicaMetrics(kept)
    return client


def test_a_sequence_that_ends() -> None:
    kept = Kept()
    client = local(kept, ["a", "b", "c"])

    async def collect() -> None:
        assert [delta async for delta in client.replica.generate(GenerationJob("r", "hello", SamplingParams()))]

    asyncio.run(collect())
    assert kept.total(of.REQUESTS, "stop") == 1
    assert kept.total(of.PROMPT_TOKENS) == 5
    assert (kept.observed[of.REQUEST_PROMPT_TOKENS], kept.observed[of.REQUEST_GENERATION_TOKENS]) == ([5], [6])
    [ttft], [e2e], [tpot] = (kept.observed[metric] for metric in (of.TTFT, of.E2E, of.TPOT))
    assert 0 < ttft < e2e
    assert tpot == pytest.approx((e2e - ttft) / 5)
    assert (kept.total(of.TTFT_SECONDS), kept.total(of.E2E_SECONDS)) == (ttft, e2e)


def test_a_sequence_whose_client_leaves() -> None:
    kept = Kept()
    client = local(kept, ["a", None])

    async def leave() -> None:
        stream = client.replica.generate(GenerationJob("r", "hello", SamplingParams()))
        await stream.__anext__()
        await stream.aclose()

    asyncio.run(leave())
    assert kept.total(of.REQUESTS, "abort") == 1
    assert len(kept.observed[of.TTFT]) == 1
    assert kept.observed[of.E2E] == kept.observed[of.TPOT] == []


def test_the_health_check_exports_the_engine() -> None:
    kept = Kept()
    client = local(kept, ["a"])
    client.replica._k_policy.observe(DraftFeedback(1, (1, 1, 1), (1, 0, 0)))
    asyncio.run(client.replica.check_health())
    assert kept.gauges[of.K] == 3
    assert kept.total(of.ACCEPTED_AT, "0") == 1


@pytest.mark.parametrize(("before", "metric"), [([], of.RETRIES), (["a"], of.BROKEN)])
def test_the_ingress_counts_what_was_lost(before: list[str], metric: Metric) -> None:
    attempts = iter(range(1))
    kept = Kept()
    loss = [*before, ActorDiedError()]
    Site(pieces=lambda _: ["a", "b"] if next(attempts, None) is None else loss, recorder=kept).events()
    assert kept.counters == {(metric, ()): 1}


def test_names_are_vllm_s_where_the_meaning_is() -> None:
    for metric in METRICS:
        if metric.vllm is not None:
            name = metric.name + "_total" * (metric.kind == "counter")
            assert name.replace("eyrie_", "vllm:", 1) == metric.vllm
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_document_has_every_metric_and_no_other() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `ray_eyrie_")]
    assert rows == [row_of(metric) for metric in METRICS]


def row_of(metric: Metric) -> str:
    """The metric's line in docs/metrics.md."""
    tags = ", ".join(f"`{tag}`" for tag in metric.tags)
    vllm = f"`{metric.vllm}`" if metric.vllm else ""
    return f"| `{metric.exported}` | {metric.kind} | {metric.meaning} | {tags} | {vllm} |"
