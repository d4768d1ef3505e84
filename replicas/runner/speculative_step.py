"""One step of speculative decoding: verify, reject, propose. A pure function of tensors besides the KV it writes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.drafters.drafter import Drafter, ProposeInput
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel
from replicas.rejection.rejection import reject
from replicas.rejection.sampling import choose
from replicas.runner.batch_inputs import BatchInputs


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What the host reads after a program, and all that it reads."""

    emitted: Tensor
    """[batch, choices] int32: accepted drafts, then the recovered or bonus token, then -1."""
    draft_ids: Tensor
    """[batch, K] int32: drafts for the next step."""


def speculative_step(
    target: TargetModel, cache: PagedCache, drafter: Drafter | None, inputs: BatchInputs, num_speculative_tokens: int
) -> StepOutputs:
    """Run a batch of prompts' chunks or of sequences with drafts; nothing crosses to the host in between."""
    batch, tokens = inputs.token_ids.shape

    # Verify: the target runs every token, and chooses after each one that matters.
    attention = target.rotary.attention_inputs(inputs.positions, inputs.block_tables, cache.block_size, inputs.view)
    hidden, tapped = target.forward(inputs.token_ids, attention, cache)
    first_rows = torch.arange(batch, dtype=torch.int32, device=hidden.device)[:, None] * tokens
    choice_rows = (first_rows + inputs.choice_rows).flatten()
    choice_positions = inputs.positions.flatten()[choice_rows].view(batch, -1) + 1
    chosen = choose(target.logits(hidden[choice_rows]), choice_positions, inputs.sampling)

    # Reject: drafts count up to the first one that the target did not choose.
    emitted, accepted = reject(inputs.draft_ids, inputs.num_drafts, chosen)
    if drafter is None or tapped is None:
        return StepOutputs(emitted, emitted[:, :0])

    # Propose: the drafter learns the states of what was accepted, and drafts on from there.
    next_tokens = torch.where(inputs.next_prompt_ids >= 0, inputs.next_prompt_ids, emitted)
    positions = torch.where(next_tokens >= 0, inputs.positions, -1)
    last_row = inputs.choice_rows[:, 0] + accepted
    propose_input = ProposeInput(tapped, next_tokens, positions, last_row, inputs.block_tables, inputs.view)
    return StepOutputs(emitted, drafter.propose(propose_input, num_speculative_tokens))
