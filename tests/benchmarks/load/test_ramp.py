"""The ramp's users by time."""

from benchmarks.load.ramp import Ramp


def test_one_user_then_steps_to_the_peak_then_one_again() -> None:
    ramp = Ramp(peak=9, steps=4, step_s=10, hold_s=60, quiet_s=20)
    moments = (0, 19.9, 20, 29.9, 30, 40, 50, 109.9, 110, 129.9)
    assert [ramp.users(moment) for moment in moments] == [1, 1, 3, 3, 5, 7, 9, 9, 1, 1]
    assert ramp.users(130) is None


def test_a_single_step_goes_straight_to_the_peak() -> None:
    ramp = Ramp(peak=3, steps=1, step_s=10, hold_s=5, quiet_s=1)
    assert [ramp.users(moment) for moment in (0.5, 1, 5.9, 6, 7)] == [1, 3, 3, 1, None]
