"""Is what a drafter proposes inside an engine what a plain reference drafts from the whole text?"""

from collections.abc import Callable, Mapping, Sequence

from replicas.drafters.drafter import Drafter
from tests.reference.hand_built_engine import Bench, TinyTarget, generate, greedy_request
from tests.reference.k_policies import RandomK
from tests.reference.overruled_drafter import Overruled
from tests.reference.scripted_drafter import ScriptedDrafter, continuation
from tests.reference.tiny_checkpoints import VOCAB

Reference = Callable[[tuple[int, ...], int], Sequence[int]]
"""(all tokens so far, K) -> the drafts; fewer than K where there are no more."""


def assert_proposals(bench: Bench, prompts: Mapping[str, tuple[int, ...]], tokens: int, reference: Reference) -> int:
    """Every proposal for `prompts`, all at once, is the reference's; returns how many had a draft."""
    answers = generate(bench.engine, [greedy_request(key, prompt, tokens) for key, prompt in prompts.items()])
    drafted = 0
    for key, prompt in prompts.items():
        text = (*prompt, *answers[key].token_ids)
        planned = {
            part.start + len(part.token_ids) - part.num_drafts + len(result.sequences[key].token_ids): part.num_propose
            for plan, result in bench.runner.steps
            for batch in plan.batches
            for part in batch.sequences
            if part.request_id == key and result.sequences[key].token_ids
        }
        proposals = bench.runner.drafts_of(key)
        assert proposals
        for length, drafts in proposals:
            if length <= len(text):
                assert list(drafts) == list(reference(text[:length], planned[length])), f"{key} after {length} tokens"
                drafted += len(drafts) > 0
    return drafted


def assert_right_whatever_was_accepted(
    target: TinyTarget,
    inner: Drafter,
    prompts: Mapping[str, tuple[int, ...]],
    answers: Mapping[str, tuple[int, ...]],
    reference: Reference,
    seed: int,
) -> None:
    """K changes at every step (often 0), and about two thirds of the verified drafts are right.

    `answers` are the target's greedy ones, 9 tokens longer than what is generated.
    """
    whole = {key: (*prompt, *answers[key]) for key, prompt in prompts.items()}
    count = min(map(len, answers.values())) - 9
    config = target.config(max_num_batched_tokens=16 if seed % 2 else 64)
    drafter = Overruled(inner, ScriptedDrafter(continuation(whole.values(), VOCAB, hit_rate=0.65, seed=seed)))
    bench = target.bench(config, RandomK(seed, 5), drafter)
    found = generate(bench.engine, [greedy_request(key, prompt, count) for key, prompt in prompts.items()])
    owners: dict[tuple[int, int], str] = {}
    for plan, result in bench.runner.steps:
        for part in (part for batch in plan.batches for part in batch.sequences):
            news = result.sequences[part.request_id].token_ids
            owners[part.block_table[0], part.start + len(part.token_ids) - part.num_drafts + len(news)] = (
                part.request_id
            )
    compared = 0
    for first_block, length, drafts in drafter.kept:
        if drafts and (first_block, length) in owners:
            key = owners[first_block, length]
            assert drafts == tuple(reference(whole[key][:length], len(drafts))), f"{key} after {length} tokens"
            compared += 1
    assert compared > 40
    accepted = [answer.last.acceptance for answer in found.values()]
    assert 0 < sum(a.accepted for a in accepted) < sum(a.drafted for a in accepted)
    assert {key: tuple(answer.token_ids) for key, answer in found.items()} == {
        key: answer[:count] for key, answer in answers.items()
    }
