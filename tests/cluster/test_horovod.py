"""Horovod's own scripts between two hosts: by MPI, and where no MPI started the ranks by the runner's meeting point."""

from __future__ import annotations

import pytest

from tests.cluster.launchers import LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, SCRIPTS, ok


@pytest.mark.parametrize(("name", "slots"), [("openmpi5", [2, 1]), ("srun", [1, 1])])
def test_an_unmodified_horovod_script(vc: Cluster, name: str, slots: list[int]) -> None:
    done = ok(LAUNCHERS[name](vc, slots, [*RUNNER, str(SCRIPTS / "horovod_training.py")]))
    local_ranks = [(local, size) for size in slots for local in range(size)]
    assert sorted(line for line in done.stdout.splitlines() if "same" in line) == [
        f"rank {rank} of {len(local_ranks)}, local {local} of {size}: same True"
        for rank, (local, size) in enumerate(local_ranks)
    ]
