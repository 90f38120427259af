"""Submit the scripts of mpi_scripts/ by a real sbatch."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.launchers import BIN, DEBIAN_MPIRUN, INTEL, INTEL_MPIRUN, PREFIXES
from tests.cluster.virtual import Cluster
from tests.launching import ROOT, RUNNER, ok

FOLDER = ROOT / "mpi_scripts"
PYTHON = {"PYTHON": RUNNER[0], "TORCHRUN": str(BIN / "torchrun")}

# The script that uses a launcher in a Slurm job, and the variables that choose it.
BY_SCRIPT: dict[str, tuple[str, dict[str, str]]] = {
    "srun": ("slurm_srun.sh", {}),
    "torchrun": ("slurm_torchrun.sh", {}),
    "openmpi4": ("slurm_mpirun.sh", {"MPIRUN": DEBIAN_MPIRUN, "OMPI_MCA_btl_tcp_if_include": "eth0"}),
    "openmpi5": ("slurm_mpirun.sh", {"MPIRUN": str(BIN / "mpirun"), "PRTE_MCA_prte_if_include": "eth0"}),
    "mpich": ("slurm_mpirun.sh", {"MPIRUN": str(PREFIXES / "mpich" / "bin" / "mpiexec")}),
    "intelmpi": ("slurm_mpirun.sh", {"MPIRUN": INTEL_MPIRUN, "I_MPI_HYDRA_IFACE": "eth0"} | INTEL),
}


def submit(vc: Cluster, script: Path, options: list[str], *target: str, **environment: str) -> str:
    """What a job printed, submitted by a real sbatch."""
    output = vc.folder / f"{script.stem}-{time.monotonic_ns()}.out"
    command = ["sbatch", "--parsable", f"--output={output}", *options, str(script), *target]
    return finished(vc, ok(vc.run("node1", command, **PYTHON, **environment)).stdout.strip(), output)


def finished(vc: Cluster, job: str, output: Path) -> str:
    """What a job printed, when it has come to a good end."""
    deadline = time.monotonic() + 120
    while True:
        state = vc.run("node1", ["scontrol", "show", "job", job, "--oneliner"]).stdout
        if any(f"JobState={end} " in state for end in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")):
            break
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    text = output.read_text()
    assert "JobState=COMPLETED " in state, text
    return text
