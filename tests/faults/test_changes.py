"""What an operator does to a running server: another K, other weights."""

import threading
from typing import Any

import pytest

from tests.faults.load import Load, Outcome, ask, counts
from tests.faults.served_cluster import ServedCluster, seconds_until
from tests.faults.test_losses import model

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def texts(cluster: ServedCluster) -> dict[str, str]:
    """What each of the two weights says to the load's prompt; the old ones serve."""
    found: dict[str, str] = {}
    for weights in ("new", "old"):
        before = frozenset(process.pid for process in cluster.replicas())
        cluster.deploy(model(cluster, weights), {})
        cluster.wait_for_replicas(2, before)
        alone = Outcome(stream=False)
        ask(cluster.url, False, alone)
        found[weights] = alone.text
    assert found["old"] != found["new"]
    return found


def told_k(cluster: ServedCluster) -> int:
    one = Outcome(stream=False)
    ask(cluster.url, False, one, max_tokens=4)
    assert one.usage is not None, one
    return one.usage["speculation"]["num_speculative_tokens"]


def test_a_new_k_needs_no_restart_and_ends_no_stream(cluster: ServedCluster, texts: dict[str, str]) -> None:
    pids, load = cluster.replicas(), Load()
    streams = load.start(cluster.url, 6, stream=True)
    load.start(cluster.url, 4, stream=False)
    seconds_until(lambda: all(one.times for one in streams), 60, "all streams")
    cluster.deploy(model(cluster), {"num_speculative_tokens": 1})
    # Both replicas: neither says 3 any more.
    changed = seconds_until(lambda: {told_k(cluster) for _ in range(8)} == {1}, 60, "the new K")
    outcomes = load.finish()
    print(f"\nnew K: {counts(outcomes)}, in force everywhere after {changed:.1f} s")
    assert counts(outcomes) == {"stream whole": 6, "plain whole": 4}
    assert {one.text for one in outcomes} == {texts["old"]}
    assert cluster.replicas() == pids


def test_new_weights_replace_the_old_ones_and_every_stream_is_finished(
    cluster: ServedCluster, texts: dict[str, str]
) -> None:
    old = frozenset(process.pid for process in cluster.replicas())
    load, over, meanwhile = Load(), threading.Event(), list[Outcome]()

    def keep_asking() -> None:
        while not over.is_set():
            meanwhile.append(Outcome(stream=False))
            ask(cluster.url, False, meanwhile[-1], max_tokens=20)

    clients = [threading.Thread(target=keep_asking) for _ in range(3)]
    for client in clients:
        client.start()
    streams = load.start(cluster.url, 4, stream=True, max_tokens=200)
    seconds_until(lambda: all(one.times for one in streams), 60, "all streams")
    cluster.deploy(model(cluster, "new"), {})
    replaced = cluster.wait_for_replicas(2, old)
    last = Outcome(stream=False)
    ask(cluster.url, False, last)
    over.set()
    for client in clients:
        client.join()
    outcomes = load.finish()
    longest = max(one.times[-1] - one.times[0] for one in outcomes)
    print(
        f"\nnew weights: {counts(outcomes)} of up to {longest:.1f} s, meanwhile {counts(meanwhile)}; {replaced:.1f} s"
    )
    assert counts(outcomes) == {"stream whole": 4}
    assert all(one.text.startswith(texts["old"]) for one in outcomes)
    assert counts(meanwhile).keys() == {"plain whole"}
    starts: Any = {texts["old"][:8], texts["new"][:8]}
    assert {one.text[:8] for one in meanwhile} == starts
    assert last.text == texts["new"]
