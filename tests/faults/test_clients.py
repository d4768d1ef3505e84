"""Clients that are too many, too slow, or gone, before one replica."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.faults.load import Load, Outcome, ask, counts, median_tpot_ms
from tests.faults.served_cluster import MODEL, STEP_S, ServedCluster, seconds_until
from tests.faults.test_losses import model

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

RUNNING, HELD, QUEUED = 4, 8, 8
ENDLESS = {"max_tokens": 220}


@pytest.fixture(scope="module")
def small(cluster: ServedCluster) -> ServedCluster:
    """One replica that runs four sequences and holds eight; eight more may wait at the ingress."""
    before = frozenset(process.pid for process in cluster.replicas())
    one = {
        "autoscaling": {"min_replicas": 1, "max_replicas": 1},
        "max_num_seqs": RUNNING,
        "max_ongoing_requests": HELD,
        "max_queued_requests": QUEUED,
        "max_num_batched_tokens": 16,
        "enable_prefix_caching": False,
    }
    cluster.deploy(model(cluster, "old", **one), {})
    cluster.wait_for_replicas(1, before)
    return cluster


def stats(cluster: ServedCluster) -> dict[str, float]:
    return httpx.get(f"{cluster.url}/stats", timeout=30).json().get(MODEL, {})


def seconds_until_idle(cluster: ServedCluster, limit_s: float) -> float:
    """Until nothing runs or waits, and every block is free."""

    def is_idle() -> bool:
        now = stats(cluster)
        return bool(now) and now["running"] == now["waiting"] == 0 and now["free_blocks"] == now["total_blocks"]

    return seconds_until(is_idle, limit_s, "an idle replica")


def test_ten_times_too_many_are_refused_and_the_admitted_keep_their_pace(small: ServedCluster) -> None:
    load = Load()
    load.start(small.url, RUNNING, stream=True)
    alone = median_tpot_ms(load.finish())
    crowd = Load()
    crowd.start(small.url, 10 * RUNNING, stream=True)
    crowd.start(small.url, 10 * RUNNING, stream=False)
    outcomes = crowd.finish()
    refused = [one for one in outcomes if one.kind == "refused"]
    admitted = [one for one in outcomes if one.kind == "whole"]
    crowded = median_tpot_ms(admitted)
    print(f"\noverload: {counts(outcomes)}; TPOT at capacity {alone:.1f} ms, of the admitted {crowded:.1f} ms")
    assert len(refused) + len(admitted) == len(outcomes) == 20 * RUNNING
    # Those that are held and queued, and whoever comes when some of them have gone.
    assert len(admitted) >= HELD + QUEUED
    assert len(refused) >= 10 * RUNNING
    assert {one.headers["retry-after"] for one in refused} == {"1"}
    assert {one.error["code"] for one in refused if one.error} == {"rate_limit_exceeded"}
    assert len({one.text for one in admitted}) == 1
    assert crowded < 1.25 * alone


def test_a_slow_reader_gets_all_of_it_and_slows_nobody(small: ServedCluster) -> None:
    quick = Load()
    quick.start(small.url, RUNNING - 1, stream=True)
    alone = median_tpot_ms(quick.finish())
    slow = Outcome(stream=True)

    def dawdle() -> None:
        time.sleep(5 * STEP_S)

    reader = threading.Thread(target=ask, args=(small.url, True, slow, dawdle), kwargs=ENDLESS)
    reader.start()
    seconds_until(lambda: bool(slow.times), 60, "the slow one")
    beside = Load()
    beside.start(small.url, RUNNING - 1, stream=True)
    pace = median_tpot_ms(beside.finish())
    freed = seconds_until_idle(small, 60)
    still_reading = reader.is_alive()
    reader.join()
    print(
        f"\nslow reader: {counts([slow])}, the others' TPOT {alone:.1f} ms without it, {pace:.1f} ms beside it; ",
        end="",
    )
    print(f"the replica is idle {freed:.1f} s after them")
    assert slow.kind == "whole"
    assert slow.usage is not None
    assert slow.usage["completion_tokens"] == 220
    assert still_reading, "its blocks are freed when the text is written, not when it is read"
    assert pace < 1.25 * alone


def raw_request(cluster: ServedCluster, **options: Any) -> socket.socket:
    """A connection that has sent a request, whose answer nobody reads."""
    body = httpx.Request("POST", cluster.url, json={"model": MODEL, "temperature": 0, "ignore_eos": True} | options)
    connection = socket.create_connection(("127.0.0.1", cluster.ports[0]))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body.content)}\r\n\r\n"
    connection.sendall(head.encode() + body.content)
    return connection


LONG = "hello there " * 20
STAGES: dict[str, tuple[dict[str, Any], Callable[[dict[str, float]], bool]]] = {
    # What the clients ask, and the figures by which their requests are known to have come so far.
    "decoding": ({"prompt": "hello", "stream": True, **ENDLESS}, lambda now: now["generated_tokens"] > 0),
    "decoding, not streamed": ({"prompt": "hello", **ENDLESS}, lambda now: now["generated_tokens"] > 0),
    "prefill": ({"prompt": LONG, "max_tokens": 8}, lambda now: now["running"] > 0),
}


@pytest.mark.parametrize("stage", STAGES)
def test_clients_that_leave_while_the_engine_works_for_them(small: ServedCluster, stage: str) -> None:
    options, has_come = STAGES[stage]
    seconds_until_idle(small, 30)
    before = stats(small)
    clients = [raw_request(small, **options) for _ in range(RUNNING)]

    def came_so_far() -> bool:
        now = stats(small)
        generated = now["generated_tokens"] - before["generated_tokens"]
        return now["running"] > 0 and has_come(now | {"generated_tokens": generated})

    seconds_until(came_so_far, 30, stage)
    during = stats(small)
    for client in clients:
        client.close()
    freed = seconds_until_idle(small, 1.0)
    after = stats(small)
    generated = after["generated_tokens"] - before["generated_tokens"]
    print(f"\nleft while {stage}: {RUNNING} clients, {during['running']:g} ran; idle {freed:.2f} s later")
    assert generated < RUNNING * options["max_tokens"]


def test_clients_that_leave_the_queue_of_the_replica(small: ServedCluster) -> None:
    seconds_until_idle(small, 30)
    before = stats(small)
    load = Load()
    load.start(small.url, RUNNING, stream=True, max_tokens=150)
    seconds_until(lambda: stats(small)["running"] == RUNNING, 30, "a full batch")
    waiting = [raw_request(small, prompt="hello", max_tokens=50) for _ in range(HELD - RUNNING - 1)]
    seconds_until(lambda: stats(small)["waiting"] == len(waiting), 30, "a queue in the replica")
    for client in waiting:
        client.close()
    freed = seconds_until(lambda: stats(small)["waiting"] == 0, 1.0, "an empty queue")
    outcomes = load.finish()
    seconds_until_idle(small, 1.0)
    generated = stats(small)["generated_tokens"] - before["generated_tokens"]
    print(
        f"\nleft the replica's queue: {len(waiting)} clients, gone {freed:.2f} s later; before them {counts(outcomes)}"
    )
    assert counts(outcomes) == {"stream whole": RUNNING}
    assert generated == RUNNING * 150


def is_refused(cluster: ServedCluster) -> bool:
    """Does another request get 429? One that is let wait leaves again."""
    with raw_request(cluster, prompt="hello", max_tokens=1) as connection:
        connection.settimeout(0.3)
        try:
            return connection.recv(64).startswith(b"HTTP/1.1 429")
        except TimeoutError:
            return False


def test_clients_that_leave_the_queue_of_the_ingress(small: ServedCluster) -> None:
    """Serve counts them: only when they are gone it lets others wait."""
    seconds_until_idle(small, 30)
    before = stats(small)
    load = Load()
    load.start(small.url, HELD, stream=True, max_tokens=200)
    queued = list[socket.socket]()
    while not is_refused(small):
        queued.append(raw_request(small, prompt="hello", max_tokens=50))
    for client in queued:
        client.close()
    freed = seconds_until(lambda: not is_refused(small), 1.0, "a queue with room")
    outcomes = load.finish()
    seconds_until_idle(small, 1.0)
    generated = stats(small)["generated_tokens"] - before["generated_tokens"]
    print(
        f"\nleft the ingress's queue: {len(queued)} clients, room {freed:.2f} s later; before them {counts(outcomes)}"
    )
    assert counts(outcomes) == {"stream whole": HELD}
    # The refused ones' forerunners had a token each; one of those that left would have had fifty.
    assert HELD * 200 <= generated < HELD * 200 + 50


def test_clients_that_leave_between_the_hops(small: ServedCluster) -> None:
    """Gone at once: some before the proxy has read the request, some before the ingress or the replica has it."""
    seconds_until_idle(small, 30)
    for number in range(40):
        client = raw_request(small, prompt="hello", stream=number % 2 == 0, **ENDLESS)
        time.sleep(number % 8 * 0.002)
        client.close()
    freed = seconds_until_idle(small, 1.0)
    one = Outcome(stream=False)
    ask(small.url, False, one)
    print(f"\nleft between the hops: 40 clients, idle {freed:.2f} s later; then {one.kind}")
    assert one.kind == "whole"
