"""Processes that train one head agree on its weights; threads stand for the processes here."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from torch import distributed

from replicas.training.averaging import Peers, join
from tests.replicas.training import tiny


def test_all_get_the_mean_of_weights_and_clocks():
    heads = [tiny.random_head(16, seed) for seed in range(2)]
    expected = [(first + second) / 2 for first, second in zip(*(list(h.parameters()) for h in heads), strict=True)]
    expected = [mean.detach().clone() for mean in expected]
    store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]

    def meet(rank: int) -> float:
        group = distributed.ProcessGroupGloo(store, rank, 2, timedelta(seconds=30))
        # torch's type stubs leave out that a gloo group has `allreduce` as every group has.
        return Peers(rank, 2, group).average(heads[rank], [10.0, 14.0][rank])  # pyright: ignore[reportArgumentType]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(meet, range(2))) == [12.0, 12.0]
    for head in heads:
        for parameter, mean in zip(head.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.detach(), mean)


def test_a_process_without_torchrun_is_alone():
    peers, head = join(), tiny.random_head(16)
    before = [parameter.detach().clone() for parameter in head.parameters()]
    assert (peers.rank, peers.processes) == (0, 1)
    assert peers.average(head, 5.0) == 5.0
    assert all(parameter.equal(old) for parameter, old in zip(head.parameters(), before, strict=True))
