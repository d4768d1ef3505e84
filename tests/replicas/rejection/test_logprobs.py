"""Log-probabilities of rows of logits."""

import numpy as np
import pytest
import torch

from replicas.rejection.logprobs import logprobs
from replicas.request import MAX_LOGPROBS
from tests.reference.rejection import softmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_chosen_and_most_likely_tokens(dtype: torch.dtype) -> None:
    logits = (5 * torch.randn(4, 50, generator=torch.Generator().manual_seed(2))).to(dtype)
    token_ids = torch.tensor([0, 49, 7, -1], dtype=torch.int32)
    found = logprobs(logits, token_ids)
    wanted = np.stack([np.log(softmax(row.double().numpy(), 1.0)) for row in logits])
    assert found.chosen[:3].numpy() == pytest.approx(wanted[[0, 1, 2], [0, 49, 7]], abs=1e-5)
    assert found.top.shape == found.top_ids.shape == (4, MAX_LOGPROBS)
    assert (found.top.dtype, found.top_ids.dtype) == (torch.float32, torch.int32)
    assert found.top.numpy() == pytest.approx(-np.sort(-wanted, 1)[:, :MAX_LOGPROBS], abs=1e-5)
    assert np.take_along_axis(wanted, found.top_ids.long().numpy(), 1) == pytest.approx(found.top.numpy(), abs=1e-5)


def test_a_small_vocabulary_has_fewer_alternatives() -> None:
    found = logprobs(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([2], dtype=torch.int32))
    assert found.top_ids.tolist() == [[1, 2, 0]]
