from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster import virtual
from tests.cluster.virtual import Cluster, cluster


@pytest.fixture(scope="session")
def vc() -> Iterator[Cluster]:
    """Two hosts with Slurm, shared by the tests of a process: they start in a second, and jobs leave nothing behind."""
    with cluster(2, slurm=True) as made:
        yield made


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One host whose Slurm binds tasks to cores."""
    bound = virtual.SLURM_CONF.replace("TaskPlugin=task/none", "TaskPlugin=task/affinity")
    monkeypatch.setattr(virtual, "SLURM_CONF", bound)
    monkeypatch.setattr(virtual, "CORES_PER_HOST", os.cpu_count())
    with cluster(1, slurm=True) as made:
        yield made
