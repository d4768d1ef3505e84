"""Prompt lookup: against a search in plain Python, alone and inside an engine."""

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from replicas.config import SpeculativeConfig
from replicas.drafters.ngram import look_up
from tests.reference.hand_built_engine import TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.proposals import assert_proposals

NGRAM = SpeculativeConfig(method="ngram", prompt_lookup_min=1, prompt_lookup_max=3)
PROMPTS = [tuple(random.Random(n).choices(range(7), k=n)) for n in (1, 2, 9, 17, 30, 45)]
"""Few different tokens, so that something is found."""


def found(text: Sequence[int], count: int, shortest: int, longest: int) -> list[int]:
    """What followed the latest of the longest matches, again and again; none without one."""
    for length in range(min(longest, len(text) - 1), shortest - 1, -1):
        for start in reversed(range(len(text) - length)):
            if list(text[start : start + length]) == list(text[-length:]):
                return list(itertools.islice(itertools.cycle(text[start + length :]), count))
    return []


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_longest_match_and_of_those_the_latest(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 24), "length")
    shortest = data.draw(st.integers(1, 4), "shortest")
    longest = shortest + data.draw(st.integers(0, 3), "more")
    count = data.draw(st.integers(1, 6), "count")
    rows = st.lists(st.integers(0, 3), min_size=length, max_size=length)
    history = data.draw(st.lists(rows, min_size=1, max_size=4), "history")
    newest = [data.draw(st.integers(-1, length - 1), "newest") for _ in history]
    tensors = torch.tensor(history, dtype=torch.int32), torch.tensor(newest, dtype=torch.int32)
    drafts = look_up(*tensors, count, shortest, longest)
    assert drafts.dtype == torch.int32
    for row, end, draft in zip(history, newest, drafts.tolist(), strict=True):
        expected = found(row[: end + 1], count, shortest, longest)
        assert draft == expected + [-1] * (count - len(expected))


def test_examples() -> None:
    def drafts(text: list[int], count: int, shortest: int, longest: int) -> list[int]:
        history = torch.tensor([[*text, 9, 9]], dtype=torch.int32)
        newest = torch.tensor([len(text) - 1], dtype=torch.int32)
        return look_up(history, newest, count, shortest, longest)[0].tolist()

    assert drafts([1, 2, 3, 4, 2, 3], 3, 2, 3) == [4, 2, 3]
    assert drafts([1, 2, 3, 4, 2, 3], 4, 3, 3) == [-1] * 4
    assert drafts([7, 5, 1, 5, 2, 5], 2, 1, 3) == [2, 5]
    assert drafts([7, 5, 1, 3, 5, 2, 7, 5], 2, 1, 3) == [1, 3], "a longer match counts more than a later one"
    assert drafts([8, 4, 4, 4], 5, 2, 3) == [4] * 5
    assert drafts([9], 2, 1, 3) == [-1, -1], "what lies behind the text is not part of it"


def found_by_ngram(text: tuple[int, ...], count: int) -> list[int]:
    """As NGRAM should."""
    return found(text, count, 1, 3)


@pytest.mark.parametrize(("seed", "budget"), [(0, 16), (1, 64), (2, 16)])
def test_drafts_in_an_engine_are_found_in_all_tokens_so_far(seed: int, budget: int, tiny_target: TinyTarget) -> None:
    """Prompts in chunks, batches, K that changes at every step, prefixes from the cache, and their copied blocks."""
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS)}
    bench = tiny_target.bench(tiny_target.config(max_num_batched_tokens=budget), RandomK(seed, 5), speculative=NGRAM)
    assert assert_proposals(bench, prompts, 40, found_by_ngram) > 20
    again = {f"again {key}": (*prompt, 3, 1) for key, prompt in prompts.items()}
    assert assert_proposals(bench, again, 12, found_by_ngram) > 2
    assert bench.engine.stats().prefix_cache_hits > 40


def test_a_preempted_sequence_finds_its_tokens_again(tiny_target: TinyTarget) -> None:
    config = tiny_target.config(num_blocks=33, max_num_seqs=4)
    bench = tiny_target.bench(config, FixedK(4), speculative=NGRAM)
    prompts = {str(index): prompt for index, prompt in enumerate(PROMPTS[2:])}
    assert_proposals(bench, prompts, 60, found_by_ngram)
    parts = [part for plan, _ in bench.runner.steps for batch in plan.batches for part in batch.sequences]
    again = [part for part in parts if part.start > 0 and len(part.token_ids) > 1 + part.num_drafts]
    assert again, "a preempted sequence went on from its own blocks"


def test_a_step_without_drafts_verifies_one_token(tiny_target: TinyTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text in which nothing comes twice costs what it costs without a drafter."""
    widths: list[tuple[int, int]] = []
    forward = tiny_target.model.forward

    def recording(token_ids: torch.Tensor, *rest: object) -> object:
        widths.append(tuple(token_ids.shape))  # pyright: ignore[reportArgumentType]
        return forward(token_ids, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(tiny_target.model, "forward", recording)
    rare = SpeculativeConfig(method="ngram", prompt_lookup_min=16)
    bench = tiny_target.bench(tiny_target.config(), FixedK(5), speculative=rare)
    answer = generate(bench.engine, [greedy_request("a", range(20, 40), 8)])["a"]
    assert (answer.last.acceptance.steps, answer.last.acceptance.drafted) == (7, 0)
    assert widths[1:] == [(1, 1)] * 7
    widths.clear()
    often = tiny_target.bench(tiny_target.config(), FixedK(5), speculative=NGRAM)
    generate(often.engine, [greedy_request("a", PROMPTS[-1], 30)])
    assert set(widths[1:]) == {(1, 1), (1, 6)}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model": "x"}, "method ngram has no model, but model is 'x'"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 3}, "prompt_lookup_min is 5, above prompt_lookup_max 3"),
        ({"prompt_lookup_min": 0}, "greater than or equal to 1"),
        (
            {"method": "eagle3", "model": "x", "prompt_lookup_max": 3},
            "prompt_lookup_min and prompt_lookup_max are for method ngram, not eagle3",
        ),
        ({"method": "eagle3"}, "method eagle3 needs a model: a folder or hub id of the drafter's checkpoint"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        SpeculativeConfig.model_validate({"method": "ngram"} | fields)


def test_a_length_that_is_not_given_is_the_other() -> None:
    def lengths(**fields: int) -> tuple[int, int]:
        return SpeculativeConfig(method="ngram", **fields).lookup_range  # pyright: ignore[reportArgumentType]

    assert lengths(prompt_lookup_min=3) == lengths(prompt_lookup_max=3) == (3, 3)
    assert lengths(prompt_lookup_min=2, prompt_lookup_max=6) == (2, 6)
