import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.rejection.rejection import reject
from tests.reference.rejection import accept


@settings(derandomize=True, max_examples=300, deadline=None)
@given(data=st.data(), batch=st.integers(1, 5), slots=st.integers(0, 6))
def test_reject_agrees_with_the_loop(data: st.DataObject, batch: int, slots: int) -> None:
    token = st.integers(0, 2)  # So few that long runs agree.
    drafts = [data.draw(st.lists(token, min_size=slots, max_size=slots)) for _ in range(batch)]
    chosen = [data.draw(st.lists(token, min_size=slots + 1, max_size=slots + 1)) for _ in range(batch)]
    counts = [data.draw(st.integers(0, slots)) for _ in range(batch)]
    emitted, accepted = reject(
        torch.tensor(drafts, dtype=torch.int32).view(batch, slots),
        torch.tensor(counts, dtype=torch.int32),
        torch.tensor(chosen, dtype=torch.int32),
    )
    assert emitted.dtype == accepted.dtype == torch.int32
    for row in range(batch):
        tokens, count = accept(drafts[row][: counts[row]], chosen[row])
        assert accepted[row] == count
        assert emitted[row].tolist() == tokens + [-1] * (slots + 1 - len(tokens))


def test_padding_never_counts_as_a_draft() -> None:
    emitted, accepted = reject(torch.tensor([[7, 0, 0]]), torch.tensor([1]), torch.tensor([[7, 0, 0, 0]]))
    assert accepted.tolist() == [1]
    assert emitted.tolist() == [[7, 0, -1, -1]]
