"""From a program's tensors of log-probabilities to the results of the sequences that asked for them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from replicas.rejection.logprobs import LogprobOutputs
from replicas.request import TokenLogprobs
from replicas.runner.speculative_step import StepOutputs
from replicas.scheduling.step_plan import BatchPlan, SequenceResult


def with_logprobs(
    results: Mapping[str, SequenceResult], batch: BatchPlan, outputs: StepOutputs, choices: int
) -> dict[str, SequenceResult]:
    """`results` of `batch`, with each sequence's own share of the log-probabilities, `choices` rows of them."""
    told = dict(results)
    for row, part in enumerate(batch.sequences):
        choice, result = part.choice, results[part.request_id]
        if outputs.logprobs is not None and choice.num_logprobs is not None:
            news = _read(outputs.logprobs, row * choices, result.token_ids, choice.num_logprobs)
            told[part.request_id] = replace(told[part.request_id], logprobs=news)
        if outputs.prompt_logprobs is not None and choice.num_prompt_logprobs is not None:
            following = part.token_ids[1:]
            if part.next_prompt_token is not None:
                following += (part.next_prompt_token,)
            news = _read(outputs.prompt_logprobs, 0, following, choice.num_prompt_logprobs)
            told[part.request_id] = replace(told[part.request_id], prompt_logprobs=news)
    return told


def _read(outputs: LogprobOutputs, first: int, token_ids: Sequence[int], count: int) -> tuple[TokenLogprobs, ...]:
    """Of each of `token_ids`, which follow row `first` and the rows after it, with `count` alternatives."""
    rows = slice(first, first + len(token_ids))
    chosen = outputs.chosen[rows].tolist()
    top_ids, top = outputs.top_ids[rows, :count].tolist(), outputs.top[rows, :count].tolist()
    return tuple(
        TokenLogprobs(token, logprob, tuple(zip(ids, values, strict=True)))
        for token, logprob, ids, values in zip(token_ids, chosen, top_ids, top, strict=True)
    )
