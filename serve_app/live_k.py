"""K while requests run: the policy that the engine asks, which a new user_config may exchange."""

from replicas.config import SpeculativeConfig
from replicas.errors import ConfigError
from replicas.scheduling.k_policy import KPolicy
from serve_app.k_policy import FixedK
from serve_app.live_settings import ModelLive


class LiveK:
    """Asks another policy. The exchange is one assignment, so the engine's thread sees the old one or the new one."""

    def __init__(self, policy: KPolicy) -> None:
        self._policy = policy

    def num_speculative_tokens(self, batch_size: int) -> int:
        """As the policy in force says."""
        return self._policy.num_speculative_tokens(batch_size)

    def use(self, policy: KPolicy) -> None:
        """From the next step on."""
        self._policy = policy


def k_policy_of(live: ModelLive, speculative: SpeculativeConfig | None) -> KPolicy:
    """The policy that `live` asks for. Raises ConfigError for a K that the engine has no programs for."""
    allowed = allowed_ks(speculative)
    k = allowed[-1] if live.num_speculative_tokens is None else live.num_speculative_tokens
    if k not in allowed:
        raise ConfigError(
            f"num_speculative_tokens: got {k}; allowed without a restart: {', '.join(map(str, allowed))}, which this "
            "model's engine was built for"
        )
    return FixedK(k)


def allowed_ks(speculative: SpeculativeConfig | None) -> tuple[int, ...]:
    """Every K that the engine can run, ascending; only 0 without a drafter."""
    return (0,) if speculative is None else speculative.speculative_tokens
