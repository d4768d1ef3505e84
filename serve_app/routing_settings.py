"""Which replica a request goes to: `routing` of a model."""

from typing import Annotated, Any, Literal

from pydantic import Field

from serve_app.strict_settings import StrictSettings

ROUTER_CLASS = "serve_app.request_router:PrefixAffinityRouter"


class RoutingSettings(StrictSettings):
    """How replicas are chosen (docs/decisions/0021)."""

    policy: Literal["power_of_two", "prefix_affinity"] = "power_of_two"
    """prefix_affinity: where the prompt's beginning was before, unless that replica is too busy; power_of_two: Serve's
    own, the shorter queue of two replicas."""
    imbalance_tokens: Annotated[int, Field(ge=0)] = 512
    """Tokens of unfinished work by which a replica may exceed the least loaded one and still be preferred."""
    max_prefixes: Annotated[int, Field(ge=1)] = 20000
    """Beginnings of prompts that an ingress replica remembers; about 200 bytes each."""
    stats_period_s: Annotated[float, Field(gt=0)] = 2
    """How often replicas tell of their load and KV use."""

    def serve_config(self) -> dict[str, Any]:
        """Serve's request_router_config."""
        if self.policy == "power_of_two":
            return {}
        kwargs = {
            "imbalance_tokens": self.imbalance_tokens,
            "max_prefixes": self.max_prefixes,
            # Serve asks every 0.9 to 1.1 periods, and takes a moment to pass the answer on.
            "told_within_s": 2 * self.stats_period_s + 1,
        }
        return {
            "request_router_class": ROUTER_CLASS,
            "request_router_kwargs": kwargs,
            "request_routing_stats_period_s": self.stats_period_s,
        }
