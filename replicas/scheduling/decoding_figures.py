"""What decoding has cost so far, for whoever asks what a stream sees: its time per output token. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from replicas.request import RequestOutput
from replicas.scheduling.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class DecodingFigures:
    """Sums over the steps in which sequences decoded. Time of prompts that ran in them counts: streams wait for it."""

    seconds: float = 0.0
    sequence_seconds: float = 0.0
    """Once for each sequence that decoded; over `tokens`, the seconds per output token."""
    tokens: int = 0
    num_speculative_tokens: int = 0
    """K of the last of them."""

    def after(self, plan: StepPlan, outputs: Sequence[RequestOutput], seconds: float) -> "DecodingFigures":
        """With one more step, which took so long."""
        decode = next((batch for batch in plan.batches if not batch.is_prefill), None)
        if decode is None:
            return self
        ids = {sequence.request_id for sequence in decode.sequences}
        return DecodingFigures(
            self.seconds + seconds,
            self.sequence_seconds + seconds * len(ids),
            self.tokens + sum(len(output.token_ids) for output in outputs if output.request_id in ids),
            decode.num_speculative_tokens,
        )
