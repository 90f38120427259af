"""The backend mpi4py on every MPI there is, with messages between two hosts."""

from __future__ import annotations

import resource

import pytest

from tests.cluster.launchers import LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok, path_of

MPIS = ["openmpi4", "openmpi5", "mpich", "intelmpi"]


@pytest.mark.parametrize("name", MPIS)
def test_every_operation(vc: Cluster, name: str) -> None:
    done = ok(LAUNCHERS[name](vc, [1, 1], [*RUNNER, path_of("every_operation")]))
    assert done.stdout.count("checks") == 2


def test_a_rank_that_ends_late_has_the_cores_for_itself(vc: Cluster) -> None:
    """Intel MPI's MPI_Finalize() spins."""
    spent = [_cpu_time()]
    for late in (0, 6):
        ends_late = f"import os, time; time.sleep({late} * (os.environ['RANK'] == '0'))"
        ok(LAUNCHERS["intelmpi"](vc, [1, 1], [*RUNNER, "-c", ends_late]))
        spent.append(_cpu_time())
    assert (spent[2] - spent[1]) - (spent[1] - spent[0]) < 3


def _cpu_time() -> float:
    """Seconds that processes have used that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
