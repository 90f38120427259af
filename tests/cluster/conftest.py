from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.virtual import Cluster, cluster


@pytest.fixture(scope="session")
def vc() -> Iterator[Cluster]:
    """Two hosts with Slurm, shared by the tests of a process: they start in a second, and jobs leave nothing behind."""
    with cluster(2, slurm=True) as made:
        yield made
