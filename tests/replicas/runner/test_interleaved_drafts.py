"""The first seed's bookkeeping of drafts among the tokens of a step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.runner.interleaved_drafts import InterleavedDrafts


def test_the_worked_example_of_the_first_seed() -> None:
    indices = InterleavedDrafts.of([4, 104, 107, 207, 209], [3, 0, 2, 0, 1])
    assert indices.cu_num_draft_tokens == (3, 3, 5, 5, 6)
    assert indices.logits_indices == (0, 1, 2, 3, 103, 104, 105, 106, 206, 207, 208)
    assert indices.target_logits_indices == (0, 1, 2, 5, 6, 9)
    assert indices.bonus_logits_indices == (3, 4, 7, 8, 10)
    # With each token named by its place: the drafts are the last 3, 0, 2, 0 and 1 of the requests.
    assert indices.draft_token_ids(range(209)) == (1, 2, 3, 105, 106, 208)


def test_nothing() -> None:
    assert InterleavedDrafts.of([], []) == InterleavedDrafts((), (), (), ())


@pytest.mark.parametrize(("ends", "drafts"), [([3], [3]), ([3, 3], [0, 0]), ([3], [-1]), ([4, 6], [0, 2])])
def test_drafts_follow_a_token(ends: list[int], drafts: list[int]) -> None:
    with pytest.raises(ValueError, match="one at least is no draft"):
        InterleavedDrafts.of(ends, drafts)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(requests=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 8)), max_size=8))
def test_every_draft_is_compared_with_the_choice_before_it(requests: list[tuple[int, int]]) -> None:
    tokens: list[str] = []
    ends: list[int] = []
    for request, (count, drafts) in enumerate(requests):
        tokens += [f"{request}:token {index}" for index in range(count)]
        tokens += [f"{request}:draft {index}" for index in range(drafts)]
        ends.append(len(tokens))
    indices = InterleavedDrafts.of(ends, [drafts for _, drafts in requests])
    drafted = [token for token in tokens if "draft" in token]
    after = [tokens[indices.logits_indices[index] + 1] for index in indices.target_logits_indices]
    assert after == drafted
    assert len(indices.cu_num_draft_tokens) == len(requests)
    assert (indices.cu_num_draft_tokens or (0,))[-1] == len(drafted)
    assert [indices.logits_indices[index] + 1 for index in indices.bonus_logits_indices] == ends
    assert len(indices.logits_indices) == len(drafted) + len(requests)
