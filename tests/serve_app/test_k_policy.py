"""Which policy a model's settings ask for, and what it answers."""

from pathlib import Path
from typing import Any

import pytest

from replicas.errors import ConfigError
from replicas.scheduling.k_policy import DraftFeedback
from serve_app.k_policy import FixedK, ScheduledK, k_policy_of
from serve_app.live_k_policy import LiveK
from serve_app.settings import ModelSettings
from tests.serve_app.k_schedules import schedule, write_schedule


def settings(k_schedule: Path | str | None, k: int = 3, **changes: Any) -> ModelSettings:
    fields: dict[str, Any] = {
        "id": "m",
        "model": "target",
        "speculative_config": {"method": "eagle3", "model": "head", "num_speculative_tokens": k},
        "k_schedule": None if k_schedule is None else str(k_schedule),
    }
    return ModelSettings.model_validate(fields | changes)


def answers(policy: ScheduledK, batches: list[int]) -> list[int]:
    """K of each step, over batches of these sizes."""
    found: list[int] = []
    for batch in batches:
        found.append(policy.num_speculative_tokens(batch))
        policy.observe(DraftFeedback(batch, (), ()))
    return found


def test_the_settings_choose_the_policy(tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "s.yaml")
    assert k_policy_of(settings(None, 5)) == FixedK(5)
    assert k_policy_of(settings(None, speculative_config=None)) == FixedK(0)
    assert k_policy_of(settings(path)) == ScheduledK(schedule())
    assert k_policy_of(settings(path, 4, live_k=True)) == LiveK(schedule(), (0, 1, 2, 3, 4))


def test_a_schedule_lies_beside_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_schedule(tmp_path / "s.yaml")
    monkeypatch.chdir(tmp_path)
    assert k_policy_of(settings("s.yaml")) == ScheduledK(schedule())


@pytest.mark.parametrize(
    ("changes", "k", "sentence"),
    [
        ({}, 2, "has k 3; allowed by the model's num_speculative_tokens and allowed_num_speculative_tokens: 0, 1, 2"),
        ({"device": "tpu"}, 3, "was measured with device 'tpu'; the model has 'cpu'"),
        ({"method": "ngram"}, 3, "was measured with method 'ngram'; the model has 'eagle3'"),
    ],
)
def test_a_schedule_must_fit_the_model(tmp_path: Path, changes: dict[str, Any], k: int, sentence: str) -> None:
    path = write_schedule(tmp_path / "s.yaml", **changes)
    with pytest.raises(ConfigError) as caught:
        k_policy_of(settings(path, k))
    assert str(caught.value) == f"k_schedule: {path} {sentence}"


def test_a_missing_schedule_is_named() -> None:
    with pytest.raises(ConfigError, match=r"k_schedule: 'nowhere\.yaml' is not a file, relative to "):
        k_policy_of(settings("nowhere.yaml"))


def test_the_first_step_has_the_k_of_its_own_batch() -> None:
    assert answers(ScheduledK(schedule()), [8, 8, 8]) == [0, 0, 0]
    assert answers(ScheduledK(schedule()), [1, 1]) == [3, 3]


def test_k_follows_the_batch_once_that_has_stayed() -> None:
    assert answers(ScheduledK(schedule()), [1, 4, 4, 4, 4, 1, 1, 1, 1]) == [3, 3, 3, 3, 1, 1, 1, 1, 3]
    # From 1 over 4 to 8: what counts is where it stays.
    assert answers(ScheduledK(schedule()), [1, 4, 8, 8, 8, 8]) == [3, 3, 3, 3, 3, 0]


def test_a_batch_on_the_edge_does_not_flap() -> None:
    assert set(answers(ScheduledK(schedule()), [3, 4] * 30)) == {3}
    assert set(answers(ScheduledK(schedule()), [4, 3] * 30)) == {1}


def test_asking_changes_nothing() -> None:
    policy = ScheduledK(schedule())
    answers(policy, [1, 1])
    assert [policy.num_speculative_tokens(batch) for batch in (8, 8, 8, 8, 1)] == [3] * 5
