"""``make smoke-cluster``: the smoke test on several hosts.

In an allocation of Slurm, PBS or LSF, or with HOSTS=…, on those hosts; else on a virtual cluster of two.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cluster.virtual import ClusterError, cluster
from tests.launching import RUNNER, clean_environment

HOSTS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "HOSTS")


def main() -> int:
    command = [*RUNNER, "smoke", *sys.argv[1:]]
    if any(os.environ.get(name) for name in HOSTS):
        return subprocess.run(command).returncode
    print("no allocation and no HOSTS: on a virtual cluster of two hosts with Slurm", file=sys.stderr)
    try:
        with cluster(2, slurm=True) as vc:
            job = ["salloc", "-Q", "--nodes=2", "--ntasks-per-node=2", *command]
            return subprocess.run(vc.command("node1", job), env=clean_environment() | vc.environment).returncode
    except ClusterError as error:
        print(f"smoke-cluster: {error}; or start it in an allocation, or with HOSTS=…", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
