import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.rejection.probabilities import filtered_probabilities
from tests.reference.rejection import filtered, softmax


def ours(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    rows = torch.tensor([logits])
    return filtered_probabilities(
        rows,
        torch.tensor([temperature]),
        torch.tensor([top_k], dtype=torch.int32),
        torch.tensor([top_p]),
        torch.tensor([min_p]),
    )[0].numpy()


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    # Sixteenths, so that many logits tie exactly.
    logits=st.lists(st.integers(-40, 40).map(lambda n: n / 16), min_size=2, max_size=40),
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    top_k=st.one_of(st.just(0), st.integers(1, 45)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)
def test_filters_agree_with_sorting(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    exact = softmax(np.array(logits), temperature)
    expected = filtered(exact, top_k, top_p, min_p)
    found = ours(logits, temperature, top_k, top_p, min_p)
    differs = (found > 0) != (expected > 0)
    # float32 may decide otherwise only where a threshold falls on a probability to within its rounding.
    if differs.any():
        above = filtered(exact, top_k, min(1.0, top_p * (1 + 3e-6)), min_p * (1 + 3e-6))
        below = filtered(exact, top_k, top_p * (1 - 3e-6), min_p * (1 - 3e-6))
        assert not (differs & ((above > 0) == (below > 0))).any()
    assert np.allclose(found[~differs], expected[~differs], rtol=1e-5, atol=1e-7)


def test_neutral_parameters_change_nothing() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 4
    ones, zeros = torch.ones(3), torch.zeros(3)
    for top_k in (0, 50, 1000):
        k = torch.full((3,), top_k, dtype=torch.int32)
        assert torch.equal(filtered_probabilities(logits, ones, k, ones, zeros), logits.softmax(-1))


def test_ties_with_the_last_token_kept_are_kept() -> None:
    logits = np.log([0.4, 0.15, 0.15, 0.15, 0.15]).tolist()
    assert (ours(logits, 1.0, 2, 1.0, 0.0) > 0).tolist() == [True] * 5
    assert (ours(logits, 1.0, 1, 1.0, 0.0) > 0).tolist() == [True] + [False] * 4
    assert (ours(logits, 1.0, 0, 0.5, 0.0) > 0).tolist() == [True] * 5
    assert (ours(logits, 1.0, 0, 0.39, 0.0) > 0).tolist() == [True] + [False] * 4


def test_top_p_applies_to_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    # Of {0.4, 0.3} alone 0.4 is 57 per cent; of everything it would be 40.
    assert (ours(logits, 1.0, 2, 0.5, 0.0) > 0).tolist() == [True, False, False, False]
    assert (ours(logits, 1.0, 0, 0.5, 0.0) > 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("top_p", "min_p"), [(0.0, 0.0), (1e-30, 0.0), (1.0, 1.0), (0.0, 1.0)])
def test_the_best_token_always_stays(top_p: float, min_p: float) -> None:
    kept = ours(np.log([0.2, 0.5, 0.3]).tolist(), 1.0, 0, top_p, min_p)
    assert kept == pytest.approx([0.0, 0.5, 0.0])


def test_a_peaked_row_keeps_its_peak() -> None:
    assert ours([1000.0, 0.0, -1000.0], 0.01, 3, 0.9, 0.5).tolist() == [1.0, 0.0, 0.0]


def test_rows_are_independent() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    parameters = (
        torch.tensor([0.5, 1.0, 1.5, 1.0]),
        torch.tensor([5, 0, 3, 0], dtype=torch.int32),
        torch.tensor([1.0, 0.8, 0.9, 1.0]),
        torch.tensor([0.0, 0.1, 0.0, 0.0]),
    )
    together = filtered_probabilities(logits, *parameters)
    for row in range(4):
        alone = filtered_probabilities(logits[row : row + 1], *(values[row : row + 1] for values in parameters))
        assert torch.equal(together[row : row + 1], alone)
