"""Horovod's own scripts between two hosts: by MPI, and where no MPI started the ranks by the runner's meeting point."""

from __future__ import annotations

import pytest

from tests.cluster.launchers import LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, SCRIPTS, ok


@pytest.mark.parametrize("name", ["openmpi5", "srun"])
def test_an_unmodified_horovod_script(vc: Cluster, name: str) -> None:
    done = ok(LAUNCHERS[name](vc, [2, 1], [*RUNNER, str(SCRIPTS / "horovod_training.py")]))
    assert sorted(line for line in done.stdout.splitlines() if "same" in line) == [
        "rank 0 of 3, local 0 of 2: same True",
        "rank 1 of 3, local 1 of 2: same True",
        "rank 2 of 3, local 0 of 1: same True",
    ]
