"""Launches that nobody means, on a real Slurm and a real MPI: refused in a line, or said."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from tests.cluster.launchers import BIN, LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.gpu_node import Nvidia, node
from tests.launching import RUNNER, clean_environment, ok, own_lines, path_of
from tests.polling import LIMIT

COMPUTES = path_of("only_computes")


def typed(vc: Cluster, command: str, *lines: str) -> str:
    """What a terminal shows where a person starts a shell by a command and types into it, all at once.

    (In lines of their own, what a program does not read the next one does.)
    """
    done = subprocess.run(
        vc.command("node1", ["script", "--quiet", "--command", command, "/dev/null"]),
        input="; ".join([*lines, "exit"]) + "\n",
        env=clean_environment(TERM="dumb") | vc.environment,
        cwd=vc.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return done.stdout.replace("\r", "")


def test_the_shell_of_srun(vc: Cluster) -> None:
    """It is one of the step's tasks, and no rank; what it starts by srun, mpirun or torchrun has ranks."""
    target = shlex.join([*RUNNER, COMPUTES])
    single = shlex.join([*RUNNER, "--launcher", "single", COMPUTES])
    torchrun = shlex.join([str(BIN / "torchrun"), "--nproc-per-node=2", "-m", "runner", COMPUTES])
    shown = typed(
        vc,
        "srun --nodes=1 --ntasks=2 --pty bash --norc -i",
        f"{target}; echo refused: $?",
        f"bash -c {shlex.quote(f'{target}; echo in a script: $?')}",
        f"{single}; echo single: $?",
        f"srun --overlap --ntasks=2 {target} && echo srun: $?",
        f"{torchrun} && echo torchrun: $?",
    )
    lines = [line for line in shown.splitlines() if "runner: " in line]
    assert len(lines) == 2, shown
    for text in ("task 0 of the 2 of srun --pty", "srun --overlap python -m runner", "salloc", "--launcher single"):
        assert text in lines[0]
    for text in ("refused: 2", "in a script: 2", "single: 0", "srun: 0", "torchrun: 0"):
        assert f"\n{text}\n" in shown, shown


def test_a_shell_of_srun_with_one_task_and_a_rank_on_a_terminal(vc: Cluster) -> None:
    target = shlex.join([*RUNNER, COMPUTES])
    assert "\nalone: 0\n" in typed(vc, "srun --ntasks=1 --pty bash --norc -i", f"{target}; echo alone: $?")
    direct = f"srun --ntasks=2 --pty {target}"
    assert "\nranks: 0\n" in typed(vc, "bash --norc -i", f"{direct}; echo ranks: $?")


def test_a_batch_script_that_starts_one_process(vc: Cluster) -> None:
    """It runs, with one line that says what is left idle."""
    line = shlex.join([*RUNNER, COMPUTES])
    done = ok(vc.run("node1", ["salloc", "--quiet", "--ntasks=2", "bash", "-c", f"{line}; {line} extra"]))
    lines = own_lines(done)
    assert len(lines) == 2
    assert " 2 tasks " in lines[0]
    quiet = ok(vc.run("node1", ["salloc", "--quiet", "--ntasks=2", "bash", "-c", f"{shlex.join(RUNNER)} smoke --help"]))
    assert own_lines(quiet) == []


@pytest.mark.parametrize(
    "starter",
    [
        ["srun", "--nodes=1", "--nodelist=node1", "--ntasks=2"],
        [str(BIN / "mpirun"), "-np", "2", "--map-by", ":OVERSUBSCRIBE"],
    ],
    ids=["srun", "mpirun"],
)
def test_torchruns_that_are_each_alone(vc: Cluster, starter: list[str]) -> None:
    torchrun = [*starter, str(BIN / "torchrun"), "--nproc-per-node=1"]
    done = vc.run("node1", [*torchrun, "-m", "runner", COMPUTES])
    assert done.returncode != 0
    (line,) = own_lines(done)
    for text in ("started 2 torchruns", "each is alone", "--nnodes=2"):
        assert text in line
    together = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=node1:{vc.free_port('node1')}", "--rdzv-id=7"]
    done = ok(vc.run("node1", [*torchrun, *together, "-m", "runner", COMPUTES]))
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0: 499500",
        "rank 1: 499500",
    ]


@pytest.mark.parametrize("name", ["srun", "torchrun"])
def test_a_container_that_clears_the_environment(name: str, vc: Cluster) -> None:
    """Each process would take itself for the only one."""
    done = LAUNCHERS[name](vc, [1, 1], ["env", "-i", *RUNNER, COMPUTES])
    assert done.returncode != 0
    assert f"{name} (process " in own_lines(done)[0]


def test_gpus_that_slurm_has_allotted_and_no_driver_shows(vc: Cluster) -> None:
    """Slurm's GPUs are stand-ins here: files that are none."""
    script = path_of("says_its_rank")
    two_hosts = ["srun", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2"]
    lost = vc.run("node1", [*two_hosts, *RUNNER, script])
    (line,) = own_lines(lost)
    assert "node1 (SLURM_STEP_GPUS=0,1)" in line
    assert line.endswith("--device cpu")
    assert lost.returncode == 2
    meant = ok(vc.run("node1", [*two_hosts, *RUNNER, "--device", "cpu", script]))
    assert (sorted(meant.stdout.splitlines()), own_lines(meant)) == (["rank 0", "rank 1"], [])
    # A step without GPUs in a job that has some: it inherits SLURM_JOB_GPUS.
    step = shlex.join(["srun", "--ntasks=1", "--gpus-per-node=0", *RUNNER, script])
    job = ["sbatch", "--wait", "--nodes=1", "--gpus-per-node=2", f"--output={vc.folder}/step.out", f"--wrap={step}"]
    ok(vc.run("node1", job))
    written = (vc.folder / "step.out").read_text()
    assert ("rank 0\n" in written, "runner:" in written) == (True, False)


def test_hosts_with_and_without_gpus_are_refused_by_name(vc: Cluster) -> None:
    host = node(vc.folder / "host with gpus", nvidia=[Nvidia("GPU-1")])
    on_node1 = f'if [ "$(hostname)" = node1 ]; then export PYTHONPATH={shlex.quote(str(host.modules))}; fi; exec "$@"'
    wrapper = ["bash", "-c", on_node1, "bash"]
    mixed = LAUNCHERS["openmpi4"](vc, [1, 1], [*wrapper, *RUNNER, COMPUTES])
    (line,) = own_lines(mixed)
    assert "cuda on node1, but cpu on node2" in line
    assert line.endswith("--device cpu")
    ok(LAUNCHERS["openmpi4"](vc, [1, 1], [*wrapper, *RUNNER, "--device", "cpu", COMPUTES]))


@pytest.mark.parametrize("library", ["found", "missing"])
def test_srun_as_many_crays_have_it(library: str, vc: Cluster) -> None:
    """--mpi=cray_shasta sets variables of Cray's own launcher, too, and no MPI of Cray's is here: the ranks meet without it."""
    srun = ["srun", "--mpi=cray_shasta", "--nodes=2", "--ntasks-per-node=1", *RUNNER]
    absent = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so.12"} if library == "missing" else {}
    found = json.loads(ok(vc.run("node1", [*srun, "explain", "--json"], **absent)).stdout)
    assert (found["launcher"]["name"], found["size"], len(found["ranks"])) == ("slurm", 2, 2)
    assert [one["host"] for one in found["ranks"]] == ["node1", "node2"]
