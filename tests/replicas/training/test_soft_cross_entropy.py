"""The fused product and loss against the plain ones."""

import torch
from torch.nn import functional

from replicas.training.soft_cross_entropy import ROWS_AT_ONCE, soft_cross_entropy, target_probabilities


def some_scores(rows: int, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 12, generator=generator).requires_grad_()
    weight = torch.randn(30, 12, generator=generator).requires_grad_()
    wanted = torch.randn(rows + 5, 30, generator=generator).softmax(-1).to(dtype)
    return hidden, weight, wanted, torch.randint(rows + 5, (rows,), generator=generator)


def test_loss_best_drafts_and_gradients_are_those_of_the_plain_products():
    for rows in (1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3):
        hidden, weight, wanted, labels = some_scores(rows)
        loss, best = soft_cross_entropy(hidden, weight, wanted, labels)
        (3 * loss).backward()
        plain, plain_weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
        scores = plain @ plain_weight.T
        expected = functional.cross_entropy(scores, wanted[labels], reduction="sum")
        (3 * expected).backward()
        torch.testing.assert_close(loss, expected)
        assert best.equal(scores.argmax(-1))
        torch.testing.assert_close(hidden.grad, plain.grad)
        torch.testing.assert_close(weight.grad, plain_weight.grad)


def test_the_products_round_to_the_labels_dtype_and_the_loss_does_not():
    hidden, weight, wanted, labels = some_scores(40, torch.bfloat16)
    loss, _ = soft_cross_entropy(hidden, weight, wanted, labels)
    scores = (hidden.bfloat16() @ weight.bfloat16().T).float()
    expected = functional.cross_entropy(scores, wanted[labels].float(), reduction="sum")
    # Bfloat16 keeps 8 bits: rounded labels do not sum to 1 exactly, which the plain loss sees as 0.4 % at most.
    torch.testing.assert_close(loss, expected, rtol=4e-3, atol=0.0)
    assert loss.dtype == torch.float32


def test_labels_are_the_targets_distribution_over_the_draft_vocabulary():
    generator = torch.Generator().manual_seed(1)
    final, rows = torch.randn(70, 12, generator=generator), torch.randn(9, 12, generator=generator)
    torch.testing.assert_close(target_probabilities(final, rows), (final @ rows.T).softmax(-1))
    assert target_probabilities(final, rows.bfloat16()).dtype == torch.bfloat16
