"""A rank of a tensor parallel replica that is lost under load: its replica ends soon, says why, and is replaced."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults.load import Outcome, ask, counts
from tests.faults.served_cluster import ServedCluster, seconds_until
from tests.faults.test_losses import check_nothing_is_lost, loaded, model

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

RANK_TIMEOUT_S = 2.0
NOTICED_S = 5.0
"""From a rank's end to its replica's."""
STDERR = 2
# Rank 0 waits for the other one in its step; only the rank's own silence shall end it.
RANKS: dict[str, Any] = {"tensor_parallel_size": 2, "rank_timeout_s": RANK_TIMEOUT_S, "step_timeout_s": 60}


@pytest.fixture(scope="module")
def text(cluster: ServedCluster) -> str:
    """Two replicas of two ranks are there; what they say to the load's prompt."""
    before = frozenset(process.pid for process in cluster.replicas())
    cluster.deploy(model(cluster, **RANKS), {})
    cluster.wait_for_replicas(2, before)
    alone = Outcome(stream=False)
    ask(cluster.url, False, alone)
    assert alone.kind == "whole", alone
    return alone.text


@pytest.mark.parametrize(
    ("number", "limit_s", "sentence"),
    [
        (signal.SIGKILL, NOTICED_S, r"was killed by SIGKILL"),
        (
            signal.SIGSTOP,
            RANK_TIMEOUT_S + NOTICED_S,
            r"stopped\) has not ended, but has given no sign of life for rank_timeout_s, 2 s",
        ),
    ],
    ids=["killed", "stopped"],
)
def test_a_rank_that_is_lost(
    number: signal.Signals, limit_s: float, sentence: str, cluster: ServedCluster, text: str
) -> None:
    load, victim = loaded(cluster), cluster.replicas()[0]
    [rank] = [child for child in victim.children() if "spawn_main" in " ".join(child.cmdline())]
    [log] = [Path(opened.path) for opened in victim.open_files() if opened.fd == STDERR]
    rank.send_signal(number)
    noticed = seconds_until(lambda: victim.pid not in {one.pid for one in cluster.replicas()}, 60, "the replica's end")
    replaced = cluster.wait_for_replicas(2, frozenset({victim.pid}))
    outcomes = load.finish()
    took = f"its replica ended after {noticed:.1f} s, replaced {replaced:.1f} s later"
    print(f"\nrank {number.name}: {counts(outcomes)}, {took}")
    check_nothing_is_lost(outcomes, text)
    assert counts(outcomes)["stream told"] >= 1
    assert noticed < limit_s
    assert not rank.is_running()
    said = re.compile(rf"ERROR replicas\.tensor_parallel\.rank_group .*rank 1 of 2 \(process {rank.pid}.* {sentence}")
    assert len(said.findall(log.read_text())) == 1
