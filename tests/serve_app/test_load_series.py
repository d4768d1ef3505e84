"""From reports over time to a load."""

import pytest

from serve_app.load_series import ReplicaReport, deployment_load


def report(**series: list[tuple[float, float]]) -> ReplicaReport:
    return ReplicaReport(series)


def steady(running: float, begin: float = 0.0, age: float = 100.0, **more: list[tuple[float, float]]) -> ReplicaReport:
    times = [begin + 2 * step for step in range(11)]
    totals = {
        "decode_seconds": [(time, time) for time in times],
        "decode_sequence_seconds": [(time, time * running) for time in times],
        "decode_tokens": [(time, time * running * 20) for time in times],
    }
    uptime = [(time, age + time - begin) for time in times]
    return report(running=[(time, running) for time in times], uptime_s=uptime, **(totals | more))


def test_time_per_token_is_of_the_window_and_of_the_decoding_batch() -> None:
    load = steady(4).load(window_s=10, ignore_first_s=10)
    assert load.tpot_s == pytest.approx(1 / 20)
    assert load.batch_size == pytest.approx(4)
    assert (load.running, load.waiting, load.kv_use) == (4, 0, 0)


def test_the_first_seconds_of_a_replica_do_not_count() -> None:
    assert steady(4, age=0).load(10, ignore_first_s=10).tpot_s == pytest.approx(1 / 20)
    assert steady(4, age=0).load(10, ignore_first_s=25).tpot_s is None


def test_few_tokens_say_nothing() -> None:
    idle = steady(4, decode_tokens=[(0.0, 0.0), (20.0, 3.0)])
    assert idle.load(10, 0).tpot_s is None


def test_an_engine_without_figures_still_has_a_load() -> None:
    load = report(running=[(0.0, 3.0)]).load(10, 10)
    assert (load.running, load.tpot_s, load.num_speculative_tokens) == (3, None, 0)


def test_demand_is_summed_over_replicas_and_its_peak_kept() -> None:
    one = report(running=[(0.0, 1.0), (2.0, 6.0), (4.0, 2.0)], waiting=[(0.0, 0.0), (2.0, 3.0), (4.0, 0.0)])
    other = report(running=[(2.5, 4.0)])
    load = deployment_load([one, other], 3, 4, 5.0, 30, 0, 10)
    assert load.peak_demand == 6 + 3 + 4 + 5
    assert (load.num_silent, load.queued, load.target_replicas) == (1, 5.0, 4)


def test_a_rise_has_a_slope_and_noise_has_none() -> None:
    rising = report(running=[(float(time), float(time)) for time in range(20)])
    assert deployment_load([rising], 1, 1, 0, 30, 0, 10).demand_slope == pytest.approx(1.0)
    noisy = report(running=[(float(time), 8.0 + time % 2) for time in range(20)])
    assert deployment_load([noisy], 1, 1, 0, 30, 0, 10).demand_slope == 0
    falling = report(running=[(float(time), 20.0 - time) for time in range(20)])
    assert deployment_load([falling], 1, 1, 0, 30, 0, 10).demand_slope == 0


def test_nobody_has_told_anything_yet() -> None:
    load = deployment_load([], 2, 2, 3.0, 30, 0, 10)
    assert (load.replicas, load.num_silent, load.peak_demand) == ((), 2, 3.0)
