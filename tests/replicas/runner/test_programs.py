"""Names of programs: of a batch, and all of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.runner.programs import ProgramKey, ProgramSet, Variant
from replicas.runner.shape_buckets import ShapeBuckets
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, TokenBias, TokenChoice

GREEDY = TokenChoice(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
SAMPLED = replace(GREEDY, temperature=0.5)
FILTERED = replace(SAMPLED, top_k=3)
BIASED = replace(GREEDY, biases=(TokenBias(3, 1.0),))
PENALISED = replace(GREEDY, presence_penalty=0.5)
LOGPROBS = replace(GREEDY, num_logprobs=0)
PROMPT_LOGPROBS = replace(GREEDY, num_prompt_logprobs=0)
EVERYTHING = Variant("filtered", True, True, True, has_masks=True)
PLAIN = Variant()


def programs(
    attends_in_place: bool = True, merges: bool = False, ks: tuple[int, ...] = (0, 1, 2, 4), num_blocks: int = 40
) -> ProgramSet:
    return ProgramSet(ShapeBuckets.build(8, 64, 128, 4, ks), num_blocks, attends_in_place, merges)


def decoding(*choices: TokenChoice, k: int = 2, table: tuple[int, ...] = (1, 2)) -> BatchPlan:
    parts = tuple(SequencePlan("a", (1,) * (1 + k), 3, k, None, k, table, choice) for choice in choices)
    return BatchPlan(parts, k, is_prefill=False)


def chunk(tokens: int, choice: TokenChoice = GREEDY, k: int = 0) -> BatchPlan:
    table = tuple(range(1, 2 + tokens // 4))
    part = SequencePlan("a", (1,) * tokens, 0, 0, None if k else 9, k, table, choice)
    return BatchPlan((part,), k, is_prefill=True)


def test_a_decode_batch_names_its_buckets() -> None:
    assert programs().of(decoding(*[GREEDY] * 5)) == ProgramKey(False, 6, 3, 2, 16, PLAIN)
    assert programs().of(decoding(GREEDY, GREEDY, table=tuple(range(1, 18)))) == ProgramKey(False, 2, 3, 2, 32, PLAIN)


def test_a_k_between_those_that_there_are_runs_the_next_larger() -> None:
    assert programs().of(decoding(GREEDY, GREEDY, k=3)) == ProgramKey(False, 2, 5, 4, 16, PLAIN)


def test_without_drafts_one_token_is_verified_unless_that_were_another_program_to_compile() -> None:
    nobody = SequencePlan("a", (1,), 3, 0, None, 2, (1, 2), GREEDY)
    batch = BatchPlan((nobody, nobody), 2, is_prefill=False)
    assert programs().of(batch) == ProgramKey(False, 2, 1, 2, 16, PLAIN)
    assert programs(merges=True).of(batch) == ProgramKey(False, 2, 3, 2, 16, PLAIN)
    somebody = BatchPlan((nobody, *decoding(GREEDY).sequences), 2, is_prefill=False)
    assert programs().of(somebody) == ProgramKey(False, 2, 3, 2, 16, PLAIN)


@pytest.mark.parametrize(("tokens", "bucket"), [(1, 16), (16, 16), (17, 32), (50, 64)])
def test_a_chunk_names_its_buckets(tokens: int, bucket: int) -> None:
    assert programs().of(chunk(tokens)) == ProgramKey(True, 1, bucket, 0, 16, PLAIN, is_in_place=True)
    assert programs(attends_in_place=False).of(chunk(tokens, k=4)) == ProgramKey(True, 1, bucket, 4, 16, PLAIN)


@pytest.mark.parametrize(
    ("choices", "variant"),
    [
        ((GREEDY, GREEDY), PLAIN),
        ((GREEDY, SAMPLED), Variant("sampled")),
        ((SAMPLED, FILTERED, GREEDY), Variant("filtered")),
        ((GREEDY, BIASED), Variant(has_biases=True)),
        ((PENALISED, SAMPLED), Variant("sampled", has_penalties=True)),
        ((GREEDY, LOGPROBS), Variant(has_logprobs=True)),
        ((PROMPT_LOGPROBS,), PLAIN),
    ],
)
def test_the_variant_is_what_the_sequences_ask_for_together(choices: tuple[TokenChoice, ...], variant: Variant) -> None:
    assert programs().of(decoding(*choices)).variant == variant
    assert programs(merges=True).of(decoding(*choices)).variant == (variant if variant == PLAIN else EVERYTHING)


@pytest.mark.parametrize("is_prefill", [True, False])
def test_a_grammar_is_a_variant(is_prefill: bool) -> None:
    batch = chunk(9, GREEDY) if is_prefill else decoding(GREEDY, GREEDY)
    guided = replace(batch, sequences=(*batch.sequences[:-1], replace(batch.sequences[-1], masks=(b"",))))
    assert programs().of(guided).variant == Variant(has_masks=True)
    assert programs(merges=True).of(guided).variant == EVERYTHING


def test_the_prompt_s_logprobs_are_a_variant_of_chunks() -> None:
    assert programs().of(chunk(9, PROMPT_LOGPROBS)).variant == Variant(has_prompt_logprobs=True)
    merged = programs(merges=True)
    assert merged.of(chunk(9, PROMPT_LOGPROBS)).variant == replace(EVERYTHING, has_prompt_logprobs=True)
    assert merged.of(chunk(9, SAMPLED)).variant == EVERYTHING


@pytest.mark.parametrize(
    ("table", "in_place"),
    [
        ((5, 6, 7), True),
        ((5,), True),
        ((24, 25), True),
        ((25, 26), False),  # The padded context of 16 blocks would leave the cache.
        ((5, 7), False),
        ((5, 7, 6), False),
        ((7, 6, 5), False),
        ((5, 6, 6, 8), False),
    ],
)
def test_a_lone_sequence_in_neighbouring_blocks_is_attended_in_place(table: tuple[int, ...], in_place: bool) -> None:
    assert programs().of(decoding(GREEDY, table=table)).is_in_place == in_place
    assert not programs().of(decoding(GREEDY, GREEDY, table=table)).is_in_place
    assert not programs(attends_in_place=False).of(decoding(GREEDY, table=table)).is_in_place


def test_how_many_there_are() -> None:
    """Batches 1 2 3 4 6 8, K 0 1 2 4, contexts 16 32 blocks, chunks 16 32 48 64 tokens."""
    merged = list(programs(attends_in_place=False, merges=True).all())
    decode = [key for key in merged if not key.is_prefill]
    assert len(decode) == 6 * 4 * 2 * 2
    assert len(merged) == len(set(merged)) == len(decode) + 4 * 2 * 4 * 3
    several = list(programs().all())
    # Where nothing is compiled, a K above 0 has a program without drafts to verify, too.
    assert len(several) == len(set(several)) == (6 + 1) * (1 + 2 * 3) * 2 * 48 + 4 * 2 * 4 * 96 * 2
    assert {key.variant for key in several if not key.is_prefill} >= {PLAIN, EVERYTHING, Variant("sampled")}


def test_a_context_too_short_for_its_chunk_is_no_program() -> None:
    buckets = ShapeBuckets.build(1, 400, 400, 16, ())
    assert buckets.context_blocks == (4, 8, 12, 16, 24, 25)
    shortest = {tokens: min(blocks for t, blocks in buckets.chunks_in_context() if t == tokens) for tokens in (64, 96)}
    # 49 tokens and the one behind them fit into 4 blocks of 16; 65 do not.
    assert shortest == {64: 4, 96: 8}
    longer_than_the_model = ShapeBuckets.build(1, 400, 100, 16, ())
    assert max(tokens for tokens, _ in longer_than_the_model.chunks_in_context()) == 128


def test_a_row_that_the_cache_cannot_hold_is_no_program() -> None:
    spans = {key.context_blocks for key in programs(num_blocks=33).all() if key.is_in_place}
    assert spans == {16, 32}
    assert {key.context_blocks for key in programs(num_blocks=32).all() if key.is_in_place} == {16}


@settings(derandomize=True, max_examples=30, deadline=None)
@given(data=st.data())
def test_every_batch_runs_one_of_all_programs(data: st.DataObject) -> None:
    """For any limits; plans as a scheduler could make them."""
    block_size = data.draw(st.sampled_from([1, 4, 16]), "block_size")
    max_model_len = data.draw(st.integers(16, 300), "max_model_len")
    max_num_seqs = data.draw(st.integers(1, 16), "max_num_seqs")
    budget = data.draw(st.integers(16, 80), "max_num_batched_tokens")
    ks = tuple(sorted(data.draw(st.sets(st.integers(1, 8)), "ks") | {0}))
    spare = data.draw(st.integers(0, 20), "spare blocks")
    in_place, merges = data.draw(st.booleans(), "attends_in_place"), data.draw(st.booleans(), "merges_variants")
    longest = -(-max_model_len // block_size)
    num_blocks = 1 + longest + spare
    one = ProgramSet(
        ShapeBuckets.build(max_num_seqs, budget, max_model_len, block_size, ks), num_blocks, in_place, merges
    )
    known = set(one.all())
    assert set(one.largest()) <= known or merges
    choices = st.sampled_from([GREEDY, SAMPLED, FILTERED, BIASED, PENALISED, LOGPROBS, PROMPT_LOGPROBS])

    def part(tokens: int, least: int, choice: TokenChoice) -> SequencePlan:
        count = data.draw(st.integers(-(-least // block_size), longest))
        first = data.draw(st.integers(1, num_blocks - count))
        table = tuple(range(first, first + count))
        table = table if data.draw(st.booleans()) else table[::-1]
        return SequencePlan("a", (1,) * tokens, 0, 0, None, 0, table, choice)

    for _ in range(2):
        k = data.draw(st.integers(0, ks[-1]), "K")
        parts = [part(1, 2, data.draw(choices)) for _ in range(data.draw(st.integers(1, max_num_seqs), "batch"))]
        assert one.of(BatchPlan(tuple(parts), k, is_prefill=False)) in known
        tokens = data.draw(st.integers(1, min(budget, max_model_len - 1)), "chunk")
        whole = part(tokens, tokens + 1, data.draw(choices))
        assert one.of(BatchPlan((whole,), k, is_prefill=True)) in known
