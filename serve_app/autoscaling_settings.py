"""How many replicas a model has: `autoscaling` of a model, told apart by `policy`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from typing_extensions import Self

from serve_app.scaling_decision import ScalingTargets
from serve_app.strict_settings import Count, Seconds, StrictSettings
from serve_app.untyped_data import mapping_or_none

POLICY_CLASS = "serve_app.autoscaling_policy:TpotPolicy"


class _Bounds(StrictSettings):
    min_replicas: Count = 1
    """0 lets the model scale to zero."""
    initial_replicas: Count | None = None
    """None: min_replicas."""
    max_replicas: Annotated[int, Field(ge=1)] = 1
    look_back_period_s: Annotated[float, Field(gt=0)] = 30
    """Figures of so long are looked at."""
    downscale_delay_s: Seconds = 600
    downscale_to_zero_delay_s: Seconds | None = None
    """From the last replica to none; None: downscale_delay_s."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas is {self.min_replicas}; allowed: at most max_replicas, {self.max_replicas}")
        if self.initial_replicas is not None and not self.min_replicas <= self.initial_replicas <= self.max_replicas:
            raise ValueError(
                f"initial_replicas is {self.initial_replicas}; allowed: min_replicas to max_replicas, "
                f"{self.min_replicas} to {self.max_replicas}"
            )
        return self


class OngoingRequestsScaling(_Bounds):
    """Serve's own policy: so many requests a replica."""

    policy: Literal["ongoing_requests"] = "ongoing_requests"
    target_ongoing_requests: Annotated[float, Field(gt=0)] = 8
    """Requests running and queued, a replica: above it replicas are added."""
    upscale_delay_s: Seconds = 30
    upscaling_factor: Annotated[float, Field(gt=0)] | None = None
    downscaling_factor: Annotated[float, Field(gt=0)] | None = None

    def serve_config(self, max_num_seqs: int) -> dict[str, Any]:
        """Serve's autoscaling_config."""
        return self.model_dump(exclude_none=True, exclude={"policy"})


class TpotScaling(_Bounds):
    """As many replicas as keep the time per output token below a target (docs/decisions/0020)."""

    policy: Literal["tpot"]
    target_tpot_ms: Annotated[float, Field(gt=0)]
    """Milliseconds per output token that the mean of a replica's streams should not exceed."""
    upscale_delay_s: Seconds = 2
    """For so long more replicas must be wanted: one bad second is none."""
    upscale_at: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Of each target: replicas are added when more of it is expected."""
    downscale_at: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Of each target: a replica goes when the others are expected to stay below it."""
    max_kv_use: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Of a replica's KV blocks."""
    max_waiting_prompt_tokens: Annotated[int, Field(ge=1)] = 4096
    """Prompt tokens that a replica has not begun with."""
    start_up_s: Seconds = 15
    """What a new replica takes to serve: a rising load is extrapolated so far."""
    ignore_first_s: Seconds = 10
    """Of a replica's life its time per token counts for nothing."""

    @model_validator(mode="after")
    def _thresholds_are_apart(self) -> Self:
        if self.downscale_at >= self.upscale_at:
            raise ValueError(
                f"downscale_at is {self.downscale_at}; allowed: less than upscale_at, {self.upscale_at}, "
                f"or the number of replicas would swing"
            )
        return self

    def targets(self, max_num_seqs: int) -> ScalingTargets:
        """As the decision takes them, for replicas that run so many sequences."""
        return ScalingTargets(
            tpot_s=self.target_tpot_ms / 1e3,
            max_num_seqs=max_num_seqs,
            max_kv_use=self.max_kv_use,
            max_waiting_prompt_tokens=self.max_waiting_prompt_tokens,
            upscale_at=self.upscale_at,
            downscale_at=self.downscale_at,
            lead_s=self.start_up_s + self.upscale_delay_s,
        )

    def serve_config(self, max_num_seqs: int) -> dict[str, Any]:
        """Serve's autoscaling_config."""
        bounds = {
            "min_replicas", "initial_replicas", "max_replicas", "look_back_period_s", "upscale_delay_s",
            "downscale_delay_s", "downscale_to_zero_delay_s",
        }  # fmt: skip
        kwargs = {"settings": self.model_dump(), "max_num_seqs": max_num_seqs}
        policy = {"policy_function": POLICY_CLASS, "policy_kwargs": kwargs}
        return self.model_dump(exclude_none=True, include=bounds) | {"policy": policy}


def _policy_name(data: Any) -> str | None:
    if isinstance(data, _Bounds):
        return str(getattr(data, "policy", ""))
    name = (mapping_or_none(data) or {}).get("policy", "ongoing_requests")
    return name if isinstance(name, str) else None


AutoscalingSettings = Annotated[
    Annotated[OngoingRequestsScaling, Tag("ongoing_requests")] | Annotated[TpotScaling, Tag("tpot")],
    Discriminator(
        _policy_name,
        custom_error_type="unknown_policy",
        custom_error_message="policy should be 'ongoing_requests' or 'tpot'",
    ),
]
