"""On each host supervise's next start has the import of the last one, or another where it cannot share that."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cluster.launchers import LAUNCHERS, batch
from tests.cluster.test_spares import supervised
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok

FAILS_ONCE = """
import os, signal, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
failed = sys.argv[1] + "/failed"
is_first = not os.path.exists(failed)
dist.barrier()
with open(f"{sys.argv[1]}/{'first' if is_first else 'second'}-{dist.get_rank()}", "w") as file:
    file.write(str(os.getppid()))
dist.barrier()
if is_first and dist.get_rank() == 3:
    open(failed, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if is_first:
    time.sleep(300)
"""


@pytest.mark.parametrize("launcher", ["srun", "openmpi5"])
def test_the_next_start_on_two_hosts(vc: Cluster, launcher: str, tmp_path: Path) -> None:
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)
    target = [*RUNNER, str(tmp_path / "fails_once.py"), str(tmp_path)]
    job = supervised(vc, tmp_path)
    if launcher == "srun":
        line = shlex.join([*RUNNER, "supervise", *job.options, "--", "srun", *target])
        environment = Cluster(**vars(vc) | {"environment": job.environment})
        done = batch(environment, ["--nodes=2", "--ntasks-per-node=2"], line)
    else:
        done = LAUNCHERS[launcher](job, [2, 2], target)
    ok(done)
    first, second = (
        [(tmp_path / f"{attempt}-{rank}").read_text() for rank in range(4)] for attempt in ("first", "second")
    )
    assert len({*first}) == len({*second}) == 2
    assert first[:2] == second[:2]
    # The ssh of the virtual cluster gives each command a mount namespace, in which a next start cannot share.
    assert (first[2:] == second[2:]) == (launcher == "srun")
