"""Sizes rounded up, piece by piece."""

import torch

from replicas.models.layers import rms_norm
from replicas.models.padding import PaddedSize


def test_2880_becomes_3072_in_each_of_three_pieces() -> None:
    hidden = PaddedSize.rounded_up(2880, 512)
    assert (hidden.size, hidden.padded) == (2880, 3072)
    weight = torch.arange(1.0, 3 * 2880 + 1).expand(2, -1)
    padded = hidden.times(3).pad(weight, 1)
    assert padded.shape == (2, 3 * 3072)
    pieces = padded[0].view(3, 3072)
    assert torch.equal(pieces[:, :2880].flatten(), weight[0])
    assert not pieces[:, 2880:].any()
    assert hidden.times(3).stored == 8640


def test_rows_are_padded_at_their_end() -> None:
    weight = torch.ones(5, 3)
    padded = PaddedSize.rounded_up(5, 4).pad(weight, 0)
    assert padded.tolist() == [[1.0] * 3] * 5 + [[0.0] * 3] * 3


def test_what_fits_already_is_not_copied() -> None:
    weight = torch.ones(8, 3)
    assert PaddedSize.rounded_up(8, 4).pad(weight, 0) is weight
    assert PaddedSize.rounded_up(3, 1).norm_weight(weight) is weight
    assert PaddedSize.rounded_up(3, 1).epsilon(1e-5) == 1e-5


def test_a_norm_over_padding_is_the_norm_without_it() -> None:
    generator = torch.Generator().manual_seed(0)
    size = PaddedSize.rounded_up(5, 8)
    state, weight = torch.randn(3, 5, generator=generator), torch.randn(5, generator=generator)
    padded_weight = size.norm_weight(size.pad(weight, 0))
    padded = rms_norm(size.pad(state, 1), padded_weight, size.epsilon(0.1))
    torch.testing.assert_close(padded[:, :5], rms_norm(state, weight, 0.1))
    assert not padded[:, 5:].any()
