"""Signs of life without processes. With them: test_rank_group."""

import queue
import threading

import pytest

from replicas.tensor_parallel.signs_of_life import SignOfLife, Silences, Teller


def test_a_rank_is_lost_when_it_alone_was_silent_for_longer_than_the_limit() -> None:
    silences = Silences([1, 2], limit_s=5.0)
    assert silences.period_s == 0.5
    for _ in range(10):
        silences.listened(0.5)
        silences.heard(1)
    assert silences.lost() is None
    silences.listened(0.5)
    silences.heard(1)
    assert silences.lost() == 2
    silences.heard(2)
    assert silences.lost() is None


def test_the_time_that_the_listener_itself_was_stopped_is_no_silence() -> None:
    silences = Silences([1], limit_s=5.0)
    silences.listened(240.0)
    assert silences.lost() is None
    for _ in range(9):
        silences.listened(0.5)
    assert silences.lost() is None
    silences.listened(0.5)
    assert silences.lost() == 1


def test_signs_go_out_by_themselves_until_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: queue.Queue[object] = queue.Queue()
    ended, is_gone = threading.Event(), threading.Event()

    def send(news: object) -> None:
        if is_gone.is_set():
            raise BrokenPipeError
        heard.put(news)

    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        assert status == 70
        ended.set()
        raise Ended

    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    teller = Teller(send)
    teller.give_signs(limit_s=0.1)
    assert [heard.get(timeout=10) for _ in range(3)] == [SignOfLife()] * 3
    assert not ended.is_set()
    is_gone.set()
    assert ended.wait(10)
