"""Replicas, nodes and engines that are lost while clients wait for them: who is answered, who is told."""

import os
import signal
import time
from typing import Any

import pytest

from tests.faults.load import Load, Outcome, ask, counts
from tests.faults.served_cluster import ServedCluster, seconds_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

TWO_REPLICAS: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_ongoing_requests": 16,
    "max_queued_requests": 64,
    "step_timeout_s": 3,
    "autoscaling": {"min_replicas": 2, "max_replicas": 2},
    "resources": {"num_cpus": 0, "custom": {"slot": 1}},
}


def model(cluster: ServedCluster, weights: str = "old", **changes: Any) -> dict[str, Any]:
    head = {"method": "eagle3", "model": str(cluster.folder / "head"), "num_speculative_tokens": 3}
    return TWO_REPLICAS | {"model": str(cluster.folder / weights), "speculative_config": head} | changes


@pytest.fixture(scope="module")
def text(cluster: ServedCluster) -> str:
    """The application is there; what it says to the load's prompt."""
    cluster.deploy(model(cluster), {})
    cluster.wait_for_replicas(2)
    alone = Outcome(stream=False)
    ask(cluster.url, False, alone)
    assert alone.kind == "whole", alone
    return alone.text


def loaded(cluster: ServedCluster) -> Load:
    """Eight plain requests and sixteen streams, more than run at once; returns when each replica has begun streams."""
    load = Load()
    load.start(cluster.url, 8, stream=False)
    streams = load.start(cluster.url, 16, stream=True)
    # More than one replica runs: the other one has some of them, whichever is lost.
    both = TWO_REPLICAS["max_num_seqs"] + 1
    seconds_until(lambda: sum(bool(one.times) and not one.finish_reason for one in streams) >= both, 60, "streams")
    return load


def check_nothing_is_lost(outcomes: list[Outcome], text: str) -> None:
    """Plain requests are answered, streams too unless they had begun: then an error ends them."""
    assert {one.kind for one in outcomes if not one.stream} == {"whole"}
    assert {one.text for one in outcomes if one.kind == "whole"} == {text}
    told = [one for one in outcomes if one.kind == "told"]
    assert all(one.times for one in told)
    assert {one.error["code"] for one in told if one.error} <= {"replica_lost", "engine_dead"}
    assert all(text.startswith(one.text) for one in told)
    assert counts(outcomes).keys() <= {"plain whole", "stream whole", "stream told"}


def test_a_replica_that_is_killed(cluster: ServedCluster, text: str) -> None:
    load, victim = loaded(cluster), cluster.replicas()[0]
    os.kill(victim.pid, signal.SIGKILL)
    replaced = cluster.wait_for_replicas(2, frozenset({victim.pid}))
    outcomes = load.finish()
    print(f"\nreplica killed: {counts(outcomes)}, replaced after {replaced:.1f} s")
    check_nothing_is_lost(outcomes, text)
    assert counts(outcomes)["stream told"] >= 1


def test_an_engine_that_is_stuck_is_replaced_and_a_busy_one_stays(cluster: ServedCluster, text: str) -> None:
    load, (victim, busy) = loaded(cluster), cluster.replicas()
    cluster.hang_file.write_text(str(victim.pid))
    try:
        replaced = cluster.wait_for_replicas(2, frozenset({victim.pid}))
    finally:
        cluster.hang_file.unlink()
    outcomes = load.finish()
    print(f"\nengine stuck: {counts(outcomes)}, replaced after {replaced:.1f} s (step_timeout_s 3)")
    check_nothing_is_lost(outcomes, text)
    assert counts(outcomes)["stream told"] >= 1
    assert busy.pid in {process.pid for process in cluster.replicas()}


def test_a_node_that_is_killed(cluster: ServedCluster, text: str) -> None:
    load = loaded(cluster)
    before = {process.pid for process in cluster.replicas()}
    begin = time.monotonic()
    cluster.process.tell(f"kill {cluster.ports[1]}")
    seconds_until(lambda: len(before & {process.pid for process in cluster.replicas()}) == 1, 30, "one replica less")
    [survivor] = before & {process.pid for process in cluster.replicas()}
    outcomes = load.finish()
    # Before anything is asserted: other tests want two nodes.
    cluster.process.tell(f"add {cluster.ports[1]}")
    ended = max(one.times[-1] for one in outcomes if one.times) - begin
    print(f"\nnode killed: {counts(outcomes)}, the last answer {ended:.1f} s later")
    check_nothing_is_lost(outcomes, text)
    assert counts(outcomes)["stream told"] >= 1
    replaced = cluster.wait_for_replicas(2, frozenset(before - {survivor}))
    print(f"a new node serves after {replaced:.1f} s")
