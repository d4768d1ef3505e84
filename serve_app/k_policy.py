"""Policies that choose K. `replicas` declares the protocol; a deployment injects one of these."""

from dataclasses import dataclass, field

from replicas.config import SpeculativeConfig
from replicas.errors import ConfigError
from replicas.scheduling.k_policy import DraftFeedback, KPolicy
from serve_app.checkpoint_paths import find_file
from serve_app.k_schedule import KSchedule, load_k_schedule
from serve_app.live_k_policy import LiveK
from serve_app.live_settings import ModelLive
from serve_app.settings import AnyModelSettings


@dataclass(frozen=True, slots=True)
class FixedK:
    """The same K whatever the batch."""

    k: int

    def num_speculative_tokens(self, batch_size: int) -> int:
        """Draft tokens of a step that runs `batch_size` sequences."""
        return self.k

    def observe(self, feedback: DraftFeedback) -> None:
        """Nothing changes it."""


@dataclass(slots=True)
class ScheduledK:
    """K as a measured schedule has it for the batch; it follows the batch once that has stayed for a few steps."""

    schedule: KSchedule
    _k: int | None = field(default=None, init=False)
    """None until the first step."""
    _wanted: int = field(default=0, init=False)
    """What the last batch asked for."""
    _held: int = field(default=0, init=False)
    """For how many steps running."""

    def num_speculative_tokens(self, batch_size: int) -> int:
        """See KPolicy."""
        return self.schedule.k_of(batch_size) if self._k is None else self._k

    def observe(self, feedback: DraftFeedback) -> None:
        """See KPolicy."""
        wanted = self.schedule.k_of(feedback.batch_size)
        self._held = self._held + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        if self._k is None or self._held >= self.schedule.hold_steps:
            self._k = wanted


@dataclass(frozen=True, slots=True)
class TabledK:
    """K as a measured schedule has it for the batch, at once: as vLLM, which was given the table, chooses it."""

    schedule: KSchedule

    def num_speculative_tokens(self, batch_size: int) -> int:
        """See KPolicy."""
        return self.schedule.k_of(batch_size)

    def observe(self, feedback: DraftFeedback) -> None:
        """Nothing changes it."""


def follower_of(schedule: KSchedule) -> KPolicy:
    """A fresh policy that chooses K by `schedule` as its engine does: ours waits a few steps, vLLM does not."""
    return TabledK(schedule) if schedule.engine == "vllm" else ScheduledK(schedule)


def k_policy_of(settings: AnyModelSettings, live: ModelLive | None = None) -> KPolicy:
    """The policy that `settings` ask for, or `live` in their place; a fresh one, which a replica can take any time.

    Raises ConfigError for a K without programs, and for a schedule that is not there, is wrong, or does not fit.
    """
    speculative = settings.speculative_config
    if live is not None and live.num_speculative_tokens is not None and settings.engine == "vllm":
        raise ConfigError(
            f"num_speculative_tokens: got {live.num_speculative_tokens}; vLLM fixes K when it starts; allowed: null, "
            "and with a restart the model's speculative_config or k_schedule"
        )
    if live is not None and live.num_speculative_tokens is not None:
        return _fixed(live.num_speculative_tokens, speculative)
    if speculative is None:
        return FixedK(0)
    if settings.k_schedule is None:
        return FixedK(speculative.num_speculative_tokens)
    path = find_file("k_schedule", settings.k_schedule)
    schedule = load_k_schedule(path)
    for key, measured, served in (
        ("engine", schedule.engine, settings.engine),
        ("device", schedule.device, settings.device),
        ("method", schedule.method, speculative.method),
    ):
        if measured != served:
            raise ConfigError(f"k_schedule: {path} was measured with {key} {measured!r}; the model has {served!r}")
    allowed = speculative.speculative_tokens
    strange = next((bucket.k for bucket in schedule.buckets if bucket.k not in allowed), None)
    if strange is not None:
        raise ConfigError(
            f"k_schedule: {path} has k {strange}; allowed by the model's num_speculative_tokens and "
            f"allowed_num_speculative_tokens: {', '.join(map(str, allowed))}"
        )
    return LiveK(schedule, allowed) if settings.live_k else follower_of(schedule)


def _fixed(k: int, speculative: SpeculativeConfig | None) -> FixedK:
    allowed = (0,) if speculative is None else speculative.speculative_tokens
    if k not in allowed:
        raise ConfigError(
            f"num_speculative_tokens: got {k}; allowed without a restart: {', '.join(map(str, allowed))}, which this "
            "model's engine was built for"
        )
    return FixedK(k)
