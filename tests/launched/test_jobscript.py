"""Job scripts as text; that they run is the cluster tests' matter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.tools.jobscript.jobscript import jobscript as write_job_script
from tests.launching import ROOT, RUNNER, mpirun, ok, run
from tests.results import refused


def jobscript(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What prints a whole script, or nothing."""
    done = run(*RUNNER, "jobscript", *arguments, cwd=ROOT, **environment)
    assert done.returncode == 0 or not done.stdout
    return done


@pytest.mark.parametrize(
    ("scheduler", "launches"), [("slurm", "exec srun "), ("pbs", 'exec "$mpirun" '), ("lsf", "exec jsrun ")]
)
def test_the_script_is_a_program_that_becomes_the_launcher(scheduler: str, launches: str) -> None:
    """Otherwise a signal to the script would not reach the launcher."""
    text = ok(jobscript("--scheduler", scheduler, "workloads.mnist")).stdout
    assert text.startswith("#!/bin/bash\n")
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert text.splitlines()[-1].startswith(launches)
    alone = ok(jobscript("--scheduler", scheduler, "smoke")).stdout
    assert alone.splitlines()[-1] == 'exec "$PYTHON" -m mpi_scripts.console "$@"'


def test_a_template_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lsf.sh.j2").write_text("#BSUB -n {{ cores }}\n")
    monkeypatch.setattr("runner.tools.jobscript.template.MPI_SCRIPTS", tmp_path)
    no_job: Any = None  # the tool needs none
    with pytest.raises(UsageError, match=r"lsf\.sh\.j2: 'cores' is undefined"):
        write_job_script(no_job, ["--scheduler", "lsf", "workloads.mnist"])


def test_what_is_asked_for_is_in_it() -> None:
    options = [*("--gpus-per-node", "4", "--cores-per-rank", "8", "--queue", "qgpu", "--account", "open-1-2")]
    options += ["--time-limit", "1-02:03:04", "--module", "CUDA/12.8", "--nodes", "3", "--name", "mine"]
    text = ok(jobscript("--scheduler", "slurm", *options, "workloads.mnist", "--name", "a b's")).stdout
    wanted = ["--job-name=mine", "--nodes=3", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=8"]
    for option in (*wanted, "--partition=qgpu", "--account=open-1-2", "--time=26:03:04"):
        assert f"#SBATCH {option}\n" in text
    assert text.index("\nload CUDA/12.8\n") < text.index("set -euo pipefail\n")
    assert f"export PYTHON={sys.executable}\n" in text
    pbs = ok(jobscript("--scheduler", "pbs", *options, "workloads.mnist")).stdout
    assert "#PBS -l select=3:ncpus=32:mpiprocs=4:ngpus=4\n" in pbs
    lsf = ok(jobscript("--scheduler", "lsf", *options, "workloads.mnist")).stdout
    assert "#BSUB -W 26:04\n" in lsf
    assert "export GPUS_PER_HOST=4\n" in lsf
    for script in (text, pbs, lsf):
        assert "set -- --device cuda workloads.mnist" in script


def test_memory_types_of_gpus_logs_and_directives() -> None:
    options = ["--nodes", "2", "--cores-per-rank", "8", "--memory", "30G", "--log", "logs/a.out"]
    more = ["--directive=--qos=high", "--directive", "#SBATCH --exclusive"]
    slurm = ok(jobscript("--scheduler", "slurm", *options, "--gpus-per-node", "h200:4", *more, "explain")).stdout
    for line in (
        "--mem=30G",
        "--gpus-per-node=h200:4",
        "--ntasks-per-node=4",
        "--output=logs/a.out",
        "--qos=high",
        "--exclusive",
    ):
        assert f"#SBATCH {line}\n" in slurm
    pbs = ok(jobscript("--scheduler", "pbs", *options, "--gpus-per-node", "4", "explain")).stdout
    assert "#PBS -l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=30gb\n" in pbs
    assert "#PBS -j oe\n#PBS -o logs/a.out\n" in pbs
    lsf = ok(jobscript("--scheduler", "lsf", "--log", "%J.out", "--directive=-x", "explain")).stdout
    assert "#BSUB -o %J.out\n#BSUB -x\n" in lsf


def test_a_job_that_goes_back_into_the_queue() -> None:
    asked = ["--requeue", "--time-limit", "4:00:00"]
    slurm = ok(jobscript("--scheduler", "slurm", *asked, "workloads.mnist", "--lr", "1")).stdout
    assert "#SBATCH --requeue\n" in slurm
    assert "set -- workloads.mnist --lr 1 --resume auto --requeue\n" in slurm
    lsf = ok(jobscript("--scheduler", "lsf", *asked, "workloads.mnist", "--resume=auto")).stdout
    assert "#BSUB -Q 75\n" in lsf
    assert "set -- workloads.mnist --resume=auto --time-limit 3:55:00\n" in lsf
    script = ok(jobscript("--scheduler", "slurm", *asked, "-m", "timeit")).stdout
    assert "#SBATCH --requeue\n" in script
    assert "set -- -m timeit\n" in script
    for arguments, told in (
        (["--scheduler", "pbs", *asked, "workloads.mnist"], "depend=afternotok"),
        (["--scheduler", "slurm", *asked, "smoke"], "smoke is a tool"),
        (["--scheduler", "slurm", *asked, "supervise"], "--directive=--requeue, and --requeue after"),
        (["--scheduler", "lsf", *asked, "supervise"], "--directive='-Q 75', and --time-limit 3:55:00"),
        (["--scheduler", "lsf", "workloads.mnist", "--requeue"], "to jobscript, before the target"),
        (["--scheduler", "pbs", "workloads.mnist", "--requeue"], "depend=afternotok"),
    ):
        refused(jobscript(*arguments), told)


@pytest.mark.parametrize("resume", [["--resume=runs/a/step-3"], ["--resume", "runs/a/step-3", "--lr", "1"]])
def test_a_job_that_would_begin_at_the_same_checkpoint_each_time_is_refused(resume: list[str]) -> None:
    done = jobscript("--scheduler", "slurm", "--requeue", "workloads.mnist", *resume)
    refused(done, "with --resume runs/a/step-3 each start begins there again; take --resume auto")


def test_a_tool_that_starts_its_jobs_itself_is_not_told_the_device() -> None:
    text = ok(jobscript("--scheduler", "slurm", "--gpus-per-node", "4", "smoke")).stdout
    assert "set -- smoke\n" in text
    text = ok(jobscript("--scheduler", "slurm", "--gpus-per-node", "4", "-m", "timeit", "-n", "1")).stdout
    assert "set -- --device cuda -m timeit -n 1\n" in text


@pytest.mark.parametrize("mark", ["#SBATCH", "#PBS", "#BSUB"])
def test_an_argument_is_no_request(mark: str) -> None:
    scheduler = {"#SBATCH": "slurm", "#PBS": "pbs", "#BSUB": "lsf"}[mark]
    plain = ok(jobscript("--scheduler", scheduler, "explain")).stdout
    text = ok(jobscript("--scheduler", scheduler, "explain", f"x\n{mark} -n 99\n")).stdout
    assert text.count(f"\n{mark}") == plain.count(f"\n{mark}")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), max_size=4))
def test_the_targets_arguments_arrive_as_they_were_typed(arguments: list[str]) -> None:
    no_job: Any = None  # the tool needs none
    with tempfile.NamedTemporaryFile("r", newline="") as file:
        options = ["--scheduler", "slurm", "--output", file.name]
        write_job_script(no_job, [*options, "workloads.mnist", "--lr", *arguments])
        text = file.read()
    (line,) = [line for line in text.split("\n") if line.startswith("set -- ")]
    shown = subprocess.run(["bash", "-c", line + "\nprintf '%s\\0' \"$@\""], capture_output=True).stdout.decode()
    assert shown.split("\0")[:-1] == ["workloads.mnist", "--lr", *arguments]


@pytest.mark.parametrize(
    ("scheduler", "variable"), [("slurm", "SLURM_ARRAY_TASK_ID"), ("pbs", "PBS_ARRAY_INDEX"), ("lsf", "LSB_JOBINDEX")]
)
def test_an_arrays_index_reaches_the_targets_options(scheduler: str, variable: str) -> None:
    text = ok(
        jobscript("--scheduler", scheduler, "explain", "{index}", "--in=a b's/{index}/{index}.pt", "{other}")
    ).stdout
    assert "Not tried" not in text
    (line,) = [line for line in text.split("\n") if line.startswith("set -- ")]
    for before, index in ((f"{variable}=7; ", "7"), ("", "{index}")):
        command = f'set -u; {before}{line}\nprintf "%s\\n" "$@"'
        shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout.splitlines()
        assert shown[-4:] == ["explain", index, f"--in=a b's/{index}/{index}.pt", "{other}"]


# What a site's module command may do with a name that is known, known by another name, or not known; each returns 0.
OLD = """module() { case "$2" in known) LOADEDMODULES=a:known/1 ;; *) echo "ERROR: no $2" >&2 ;; esac; }"""
NEW = """module() { case "$1 $2" in "load known") LOADEDMODULES=a:known/1 ;; "load alias") LOADEDMODULES=a:known/1 ;; is-loaded*) [ "$2" = a/new ] ;; esac; }"""


@pytest.mark.parametrize(
    ("command", "name", "is_loaded"),
    [
        (OLD, "known", True),
        (OLD, "none", False),
        (NEW, "known", True),
        (NEW, "alias", True),
        (NEW, "a/new", True),
        (NEW, "b", False),
    ],
)
def test_a_module_that_was_not_loaded_ends_the_job_at_once(command: str, name: str, is_loaded: bool) -> None:
    text = ok(jobscript("--scheduler", "slurm", "--module", name, "explain")).stdout
    text = f"{command}\nLOADEDMODULES=a\n{text.partition('set -euo pipefail')[0]}\necho continues\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == ((0, "continues\n") if is_loaded else (1, "")), done.stderr
    assert is_loaded or f"module load {name}: it is not loaded (LOADEDMODULES=a)" in done.stderr


def test_it_can_be_written_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    done = ok(jobscript("--scheduler", "slurm", "-o", str(path), "-m", "timeit"))
    assert done.stdout == ""
    assert os.access(path, os.X_OK)
    assert "set -- -m timeit\n" in path.read_text()
    refused(jobscript("--scheduler", "slurm", "-o", str(tmp_path / "no" / "job.sh"), "-m", "timeit"), "--output")


def test_bad_requests_are_refused_in_a_line(tmp_path: Path) -> None:
    refused(jobscript("--mpi", "lam", "workloads.mnist"), "'srun', 'openmpi', 'intelmpi', 'mpich'")
    refused(jobscript("--scheduler", "pbs", "--mpi", "srun", "workloads.mnist"), "ranks are started by openmpi or")
    refused(jobscript("--scheduler", "lsf", "--mpi", "openmpi", "workloads.mnist"), "started by jsrun")
    refused(jobscript("--scheduler", "lsf", "--submit", "workloads.mnist"), "bsub is not on PATH")
    refused(jobscript("--time-limit", "60", "workloads.mnist"), "for example 1:30:00")
    refused(jobscript("--nodes", "0", "workloads.mnist"), "--nodes: '0'")
    refused(jobscript("--name", "my job", "workloads.mnist"), "'my job' is not one word")
    refused(jobscript("--queue", "a\n#SBATCH --nodes=99", "workloads.mnist"), "is not one word")
    refused(jobscript("--directive", "a\nb", "workloads.mnist"), "'a\\nb' is not one line")
    refused(jobscript("--memory", "64", "workloads.mnist"), "--memory: '64'")
    refused(jobscript("--gpus-per-node", "h200:0", "workloads.mnist"), "'h200:0' is no number of GPUs")
    refused(jobscript("--output=", "workloads.mnist"), "argument -o/--output: the path is empty")
    refused(jobscript("--log", "a b", "workloads.mnist"), "'a b' is not one word")
    typed = jobscript("--scheduler", "pbs", "--gpus-per-node", "h200:4", "workloads.mnist")
    refused(typed, "--scheduler pbs does not take a GPU's type")
    refused(jobscript("--scheduler", "lsf", "--memory", "64G", "workloads.mnist"), "all the memory of its hosts")
    gpus = jobscript("--scheduler", "slurm", "--gpus-per-node", "4", "--ranks-per-node", "8", "workloads.mnist")
    refused(gpus, "each rank needs a GPU of its own")
    refused(jobscript("--scheduler", "slurm", "missing.py"), "missing.py")
    refused(jobscript("--scheduler", "pbs", "workloads.mnist", MPIRUN="/no/mpirun"), "MPIRUN=/no/mpirun is no program")
    refused(jobscript("--scheduler", "pbs", "--mpi", "mpich", "explain"), "mpirun is openmpi's; load mpich's")
    refused(jobscript("explain", PATH=str(tmp_path)), "none of sbatch, qsub and bsub is here")


def test_under_mpirun_there_is_one_script() -> None:
    done = ok(mpirun(3, *RUNNER, "jobscript", "--scheduler", "slurm", "explain"))
    assert done.stdout.count("#!/bin/bash") == 1
