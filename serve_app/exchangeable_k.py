"""K while requests run: the policy that the engine asks, which a new user_config may exchange."""

from replicas.scheduling.k_policy import DraftFeedback, KPolicy
from serve_app.draft_counts import DraftCounts


class ExchangeableK:
    """Asks another policy. The exchange is one assignment, so the engine's thread sees the old one or the new one."""

    def __init__(self, policy: KPolicy) -> None:
        self._policy = policy
        self.counts = DraftCounts()
        """Of all policies that were in force."""

    def num_speculative_tokens(self, batch_size: int) -> int:
        """As the policy in force says."""
        return self._policy.num_speculative_tokens(batch_size)

    def observe(self, feedback: DraftFeedback) -> None:
        """Tells the policy in force."""
        self.counts.add(feedback)
        self._policy.observe(feedback)

    def use(self, policy: KPolicy) -> None:
        """From the next step on."""
        self._policy = policy
