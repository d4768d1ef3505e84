"""One step of speculative decoding: verify, reject, propose. A pure function of tensors besides the KV it writes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.drafters.drafter import Drafter, ProposeInput
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel
from replicas.rejection.adjustments import adjust
from replicas.rejection.logprobs import LogprobOutputs, logprobs
from replicas.rejection.rejection import reject
from replicas.rejection.sampling import choose
from replicas.runner.batch_inputs import BatchInputs


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What the host reads after a program, and all that it reads."""

    tokens: Tensor
    """[batch, choices + K] int32: accepted drafts, then the recovered or bonus token, then -1 up to as many as were
    chosen; then the drafts for the next step, -1 where there is none. One tensor, because a device reads one faster
    than two."""
    logprobs: LogprobOutputs | None
    """Of every choice, rows [batch * choices], if a sequence of the batch asked."""
    prompt_logprobs: LogprobOutputs | None
    """Of the prompt's token after each row [batch * tokens], if the sequence asked."""


def speculative_step(
    target: TargetModel, cache: PagedCache, drafter: Drafter | None, inputs: BatchInputs, num_speculative_tokens: int
) -> StepOutputs:
    """Run a batch of prompts' chunks or of sequences with drafts; nothing crosses to the host in between."""
    batch, tokens = inputs.token_ids.shape

    # Verify: the target runs every token, and chooses after each one that matters.
    attention = target.rotary.attention_inputs(inputs.positions, inputs.block_tables, cache, inputs.view)
    hidden, tapped = target.forward(inputs.token_ids, attention, cache)
    first_rows = torch.arange(batch, dtype=torch.int32, device=hidden.device)[:, None] * tokens
    choice_rows = (first_rows + inputs.choice_rows).flatten()
    choice_positions = inputs.positions.flatten().index_select(0, choice_rows).view(batch, -1) + 1
    chosen, choice_logprobs = _choose(target, hidden.index_select(0, choice_rows), choice_positions, inputs)
    prompt_logprobs = None
    if inputs.wants_prompt_logprobs:
        prompt_logprobs = logprobs(target.logits(hidden), inputs.next_prompt_ids.flatten())

    # Reject: drafts count up to the first one that the target did not choose.
    emitted, accepted = reject(inputs.draft_ids, inputs.num_drafts, chosen)
    if drafter is None:
        return StepOutputs(emitted, choice_logprobs, prompt_logprobs)

    # Propose: the drafter learns the states of what was accepted, and drafts on from there.
    nothing = torch.full_like(inputs.next_prompt_ids, -1)
    next_tokens = torch.where(inputs.next_prompt_ids == nothing, emitted, inputs.next_prompt_ids)
    positions = torch.where(next_tokens == nothing, nothing, inputs.positions)
    last_row = inputs.choice_rows[:, 0] + accepted
    taps = hidden[:, :0] if tapped is None else tapped
    tokens_and_states = ProposeInput(
        taps, hidden, inputs.token_ids, next_tokens, positions, last_row, inputs.block_tables, inputs.view
    )
    draft_ids = drafter.propose(tokens_and_states, num_speculative_tokens)
    return StepOutputs(torch.cat([emitted, draft_ids], 1), choice_logprobs, prompt_logprobs)


def _choose(
    target: TargetModel, states: Tensor, positions: Tensor, inputs: BatchInputs
) -> tuple[Tensor, LogprobOutputs | None]:
    """The target's choices [batch, choices] after `states` [batch * choices, hidden], for `positions`."""
    if inputs.wants_only_the_best:
        return target.best(states).view(positions.shape), None
    logits = scores = target.logits(states)
    if inputs.adjustments is not None:
        scores = adjust(logits, positions, inputs.draft_ids, inputs.adjustments)
    chosen = choose(scores, positions, inputs.sampling)
    return chosen, logprobs(logits, chosen.flatten()) if inputs.wants_logprobs else None
