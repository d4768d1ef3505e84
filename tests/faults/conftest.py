"""One cluster for the whole folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.served_cluster import ServedCluster, served_cluster
from tests.reference.tiny_checkpoints import write_head, write_target


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Checkpoints are `old` and `new` (other weights) with `head`, in the cluster's folder."""
    folder: Path = tmp_path_factory.mktemp("faults")
    write_target(folder / "old")
    write_target(folder / "new", seed=1)
    write_head(folder / "head")
    with served_cluster(folder) as running:
        yield running
