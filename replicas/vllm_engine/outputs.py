"""From vLLM's outputs to ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from replicas.request import Acceptance, FinishReason, RequestOutput, TokenLogprobs

FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop", "length": "length", "abort": "abort", "error": "error", "repetition": "stop",
}  # fmt: skip
"""repetition: vLLM's own guard against endless loops, if it was asked for."""


@dataclass(slots=True)
class Progress:
    """Follows the outputs of one request, each of which holds what one step added."""

    request_id: str
    num_prompt_tokens: int
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    num_output_tokens: int = field(default=0, init=False)

    def of(self, output: Any) -> RequestOutput:
        """`output` (vllm.RequestOutput with deltas) as ours. How speculation went is known at the end alone."""
        [added] = output.outputs
        self.num_output_tokens += len(added.token_ids)
        reason = None if added.finish_reason is None else FINISH_REASONS[added.finish_reason]
        return RequestOutput(
            request_id=self.request_id,
            token_ids=tuple(added.token_ids),
            text=added.text,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            acceptance=Acceptance()
            if reason is None
            else acceptance(added.spec_decode_metrics, self.num_output_tokens),
            finish_reason=reason,
            logprobs=self._logprobs(added),
            prompt_logprobs=self._prompt_logprobs(output),
            num_cached_tokens=output.num_cached_tokens or 0,
        )

    def _logprobs(self, added: Any) -> tuple[TokenLogprobs, ...] | None:
        if self.num_logprobs is None:
            return None
        rows = zip(added.token_ids, added.logprobs or (), strict=True)
        return tuple(_scores(token_id, row, self.num_logprobs) for token_id, row in rows)

    def _prompt_logprobs(self, output: Any) -> tuple[TokenLogprobs | None, ...] | None:
        count, rows = self.num_prompt_logprobs, output.prompt_logprobs
        if count is None or not rows:
            return None
        pairs = zip(output.prompt_token_ids, rows, strict=True)
        return tuple(None if row is None else _scores(token_id, row, count) for token_id, row in pairs)


def acceptance(metrics: Any, num_output_tokens: int) -> Acceptance:
    """Of a request that has ended, from vLLM's RequestSpecDecodeMetrics (level detailed).

    vLLM counts steps that verified drafts. The others are what the tokens leave: the first token is the prefill's, and
    a step adds one more than it accepted. An answer that was cut inside its last step leaves up to K of them out.
    """
    found = Acceptance()
    if metrics is not None:
        for drafted, accepted in zip(metrics.per_step_drafted, metrics.per_step_accepted, strict=True):
            found = found.after(drafted, accepted)
    plain = num_output_tokens - 1 - found.steps - found.accepted
    return replace(found, steps=found.steps + max(plain, 0))


def _scores(token_id: int, row: Mapping[int, Any], count: int) -> TokenLogprobs:
    """`row` holds the `count` most likely tokens, and the chosen one if it is not among them."""
    best = sorted(row.items(), key=lambda item: item[1].rank)[:count]
    return TokenLogprobs(token_id, row[token_id].logprob, tuple((token, one.logprob) for token, one in best))
