"""The scripts in mpi_scripts/, submitted and run as a user would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.job_scripts import BY_LAUNCHER, FOLDER, PYTHON, finished, submit_by, written
from tests.cluster.launchers import BIN, DEBIAN_MPIRUN, INTEL, INTEL_MPIRUN, PREFIXES, by_ssh
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok, own_lines, path_of
from tests.results import hosts, json_object


@pytest.mark.parametrize("launcher", BY_LAUNCHER)
def test_by_sbatch_on_two_nodes(vc: Cluster, launcher: str) -> None:
    tasks, cores = (1, 2) if launcher == "torchrun" else (2, 1)
    text = submit_by(vc, launcher, [f"--ntasks-per-node={tasks}", f"--cpus-per-task={cores}"], "explain", "--json")
    assert hosts(json_object(text)) == {"node1": [0, 1], "node2": [2, 3]}


def test_a_job_trains_and_ends_with_the_targets_exit_code(vc: Cluster, tmp_path: Path) -> None:
    shape = ["--ntasks-per-node=1", "--cpus-per-task=1"]
    target = ["workloads.linear", "--epochs", "2", "--checkpoint-dir", str(tmp_path)]
    assert "done: 64 steps" in submit_by(vc, "srun", shape, *target)
    with pytest.raises(AssertionError, match="--epochs"):
        submit_by(vc, "srun", shape, "workloads.linear", "--epochs=0")


def test_what_jobscript_writes_is_submitted_and_runs(vc: Cluster) -> None:
    shape = ["--nodes=2", "--ranks-per-node=2", "--cores-per-rank=1", "--memory=1M"]
    command = [*RUNNER, "jobscript", *shape, "--time-limit=0:05:00", "--mpi=srun", "--submit", "explain", "--json"]
    answer = ok(vc.run("node1", command)).stdout
    job = answer.split()[-1]
    assert answer == f"Submitted batch job {job}\n"
    text = finished(vc, job, vc.folder / f"train-{job}.out")
    assert hosts(json_object(text)) == {"node1": [0, 1], "node2": [2, 3]}


def test_from_inside_a_step_that_is_bound_to_a_core(binding: Cluster) -> None:
    """Its cores are not those of a job that is submitted there, nor of what supervise starts."""
    shape = ["--ranks-per-node=2", "--cores-per-rank=1", "--time-limit=0:05:00", "--directive=--oversubscribe"]
    script = path_of("says_its_cores")
    step = ["srun", "--ntasks=1", "--cpus-per-task=1"]
    assert ok(binding.run("node1", [*step, "printenv", "SLURM_CPU_BIND"])).stdout.startswith("quiet,mask_cpu:0x")
    sbatch = ["sbatch", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=train-%j.out"]
    by_jobscript = binding.run("node1", [*step, *RUNNER, "jobscript", *shape, "--submit", script])
    by_sbatch = binding.run("node1", [*step, *sbatch, *written(binding, "srun", script)])
    jobs = [ok(done).stdout.split()[-1] for done in (by_jobscript, by_sbatch)]
    texts = [finished(binding, job, binding.folder / f"train-{job}.out") for job in jobs]
    inner = ["srun", "--overlap", "--ntasks=2", "--cpus-per-task=1", *RUNNER, script]
    whole = ["srun", "--ntasks=1", "--cpus-per-task=2", "--cpu-bind=map_cpu:0"]
    texts.append(ok(binding.run("node1", [*whole, *RUNNER, "supervise", "--", *inner])).stdout)
    for text in texts:
        cores = [line.split()[-1] for line in text.splitlines() if line.startswith("cores of rank")]
        assert len(cores) == len(set(cores)) == 2, text


def test_a_request_that_slurm_refuses(vc: Cluster) -> None:
    done = vc.run("node1", [*RUNNER, "jobscript", "--queue=nowhere", "--submit", "explain"])
    assert done.returncode == 2
    (line,) = own_lines(done)
    assert "sbatch refused the job" in line
    assert "invalid partition" in line


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        ("openmpi.sh", {"MPIRUN": DEBIAN_MPIRUN, "HOSTS": "node1:2,node2:2", "OMPI_MCA_btl_tcp_if_include": "eth0"}),
        ("openmpi.sh", {"MPIRUN": str(BIN / "mpirun"), "HOSTS": "node1:2,node2:2", "PRTE_MCA_prte_if_include": "eth0"}),
        ("mpich.sh", {"MPIRUN": str(PREFIXES / "mpich" / "bin" / "mpiexec"), "HOSTS": "node1:2,node2:2"}),
        ("intelmpi.sh", {"MPIRUN": INTEL_MPIRUN, "HOSTS": "node1,node2", "PER_HOST": "2"} | INTEL),
    ],
    ids=["Open MPI 4", "Open MPI 5", "MPICH", "Intel MPI"],
)
def test_by_ssh_on_two_hosts(vc: Cluster, script: str, environment: dict[str, str]) -> None:
    done = ok(
        vc.run("node1", [str(FOLDER / script), "explain", "--json"], RANKS="4", **PYTHON, **by_ssh(vc), **environment)
    )
    assert hosts(json_object(done.stdout)) == {"node1": [0, 1], "node2": [2, 3]}


def test_all_scripts_are_executable_and_name_no_host() -> None:
    scripts = sorted(FOLDER.glob("*.sh"))
    assert len(scripts) == 5
    for script in scripts:
        text = script.read_text()
        assert script.stat().st_mode & 0o111, script
        assert "set -euo pipefail" in text, script
        assert "\nexec " in text, f"{script}: a signal to it would not reach the launcher"
        assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
        assert "node1" not in text, script
