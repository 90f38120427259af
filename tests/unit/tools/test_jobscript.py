"""Job scripts as text; that they run is the cluster tests' matter."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.tools.jobscript.jobscript import jobscript as write_job_script
from runner.tools.jobscript.site import load_site, read_site, site_names
from tests.launching import mpirun_path

JOB: Any = SimpleNamespace(context=SimpleNamespace(environment={}))


def jobscript(scheduler: str, *arguments: str) -> str:
    """What the tool prints."""
    with redirect_stdout(io.StringIO()) as printed:
        write_job_script(JOB, ["--scheduler", scheduler, *arguments])
    return printed.getvalue()


def refused(arguments: list[str], told: str) -> None:
    with redirect_stdout(io.StringIO()) as printed, pytest.raises(UsageError, match=re.escape(told)):
        write_job_script(JOB, arguments)
    assert not printed.getvalue()


@pytest.mark.parametrize(
    ("scheduler", "launches"), [("slurm", "exec srun "), ("pbs", 'exec "$mpirun" '), ("lsf", "exec jsrun ")]
)
def test_the_script_is_a_program_that_becomes_the_launcher(scheduler: str, launches: str) -> None:
    """Otherwise a signal to the script would not reach the launcher."""
    text = jobscript(scheduler, "workloads.mnist")
    assert text.startswith("#!/bin/bash\n")
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert text.splitlines()[-1].startswith(launches)
    alone = jobscript(scheduler, "smoke")
    assert alone.splitlines()[-1] == 'exec "$PYTHON" -m mpi_scripts.console "$@"'


def test_a_template_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lsf.sh.j2").write_text("#BSUB -n {{ cores }}\n")
    monkeypatch.setattr("runner.tools.jobscript.template.MPI_SCRIPTS", tmp_path)
    refused(["--scheduler", "lsf", "workloads.mnist"], "lsf.sh.j2: 'cores' is undefined")


SIZE = "--nodes 3 --gpus-per-node 4 --cores-per-rank 8 --time-limit 1-02:03:04 workloads.mnist"
TRAINS = "set -- --device cuda workloads.mnist"
REQUEUE, LINEAR = "--requeue --time-limit 4:00:00", "workloads.linear --lr 1"
RESUMED = f"{LINEAR} --resume=auto"


@pytest.mark.parametrize(
    ("scheduler", "words", "options", "lines"),
    [
        ("slurm", SIZE, "--nodes=3 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8 --time=26:03:04", [TRAINS]),
        ("slurm", "--queue q --account a-1 --name mine explain", "--job-name=mine --partition=q --account=a-1", []),
        ("slurm", "--memory 30G --log logs/a.out explain", "--mem=30G --output=logs/a.out", []),
        ("slurm", "--gpus-per-node h200:4 explain", "--gpus-per-node=h200:4 --ntasks-per-node=4", []),
        ("slurm", "--directive=--qos=high --directive #SBATCH|--exclusive explain", "--qos=high --exclusive", []),
        ("slurm", f"{REQUEUE} {LINEAR}", "--requeue", [f"set -- {LINEAR} --resume auto --requeue"]),
        ("slurm", f"{REQUEUE} -m timeit", "--requeue", ["set -- -m timeit"]),
        ("slurm", "--gpus-per-node 4 smoke", "", ["set -- smoke"]),  # it starts its jobs itself
        ("slurm", "--gpus-per-node 4 -m timeit -n 1", "", ["set -- --device cuda -m timeit -n 1"]),
        ("pbs", SIZE, "", ["#PBS -l select=3:ncpus=32:mpiprocs=4:ngpus=4", TRAINS]),
        ("pbs", f"--memory 30G {SIZE}", "", ["#PBS -l select=3:ncpus=32:mpiprocs=4:ngpus=4:mem=30gb"]),
        ("pbs", "--log logs/a.out explain", "", ["#PBS -j oe", "#PBS -o logs/a.out"]),
        ("lsf", SIZE, "", ["#BSUB -W 26:04", "export GPUS_PER_HOST=4", TRAINS]),
        ("lsf", "--log %J.out --directive=-x explain", "", ["#BSUB -o %J.out", "#BSUB -x"]),
        ("lsf", f"{REQUEUE} {RESUMED}", "", ["#BSUB -Q 75", f"set -- {RESUMED} --time-limit 3:55:00"]),
    ],
)
def test_what_is_asked_for_is_in_it(scheduler: str, words: str, options: str, lines: list[str]) -> None:
    """``options`` are sbatch's."""
    text = jobscript(scheduler, *(word.replace("|", " ") for word in words.split())).splitlines()
    assert {*lines, *(f"#SBATCH {option}" for option in options.split())} <= {*text}
    assert f"export PYTHON={sys.executable}" in text


def test_a_job_that_cannot_go_back_into_the_queue_is_refused() -> None:
    asked = REQUEUE.split()
    for arguments, told in (
        (["--scheduler", "pbs", *asked, "workloads.mnist"], "depend=afternotok"),
        (["--scheduler", "slurm", *asked, "smoke"], "smoke is a tool"),
        (["--scheduler", "slurm", *asked, "supervise"], "--directive=--requeue, and --requeue after"),
        (["--scheduler", "lsf", *asked, "supervise"], "--directive='-Q 75', and --time-limit 3:55:00"),
        (["--scheduler", "lsf", "workloads.mnist", "--requeue"], "to jobscript, before the target"),
        (["--scheduler", "pbs", "workloads.mnist", "--requeue"], "depend=afternotok"),
    ):
        refused(arguments, told)
    for resume in (["--resume=runs/a/step-3"], ["--resume", "runs/a/step-3", "--lr", "1"]):
        told = "with --resume runs/a/step-3 each start begins there again; take --resume auto"
        refused(["--scheduler", "slurm", "--requeue", "workloads.mnist", *resume], told)


@pytest.mark.parametrize("mark", ["#SBATCH", "#PBS", "#BSUB"])
def test_an_argument_is_no_request(mark: str) -> None:
    scheduler = {"#SBATCH": "slurm", "#PBS": "pbs", "#BSUB": "lsf"}[mark]
    plain = jobscript(scheduler, "explain")
    text = jobscript(scheduler, "explain", f"x\n{mark} -n 99\n")
    assert text.count(f"\n{mark}") == plain.count(f"\n{mark}")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), max_size=4))
def test_the_targets_arguments_arrive_as_they_were_typed(arguments: list[str]) -> None:
    with tempfile.NamedTemporaryFile("r", newline="") as file:
        jobscript("slurm", "--output", file.name, "workloads.mnist", "--lr", *arguments)
        text = file.read()
    (line,) = [line for line in text.split("\n") if line.startswith("set -- ")]
    shown = subprocess.run(["bash", "-c", line + "\nprintf '%s\\0' \"$@\""], capture_output=True).stdout.decode()
    assert shown.split("\0")[:-1] == ["workloads.mnist", "--lr", *arguments]


@pytest.mark.parametrize(
    ("scheduler", "variable"), [("slurm", "SLURM_ARRAY_TASK_ID"), ("pbs", "PBS_ARRAY_INDEX"), ("lsf", "LSB_JOBINDEX")]
)
def test_an_arrays_index_reaches_the_targets_options(scheduler: str, variable: str) -> None:
    text = jobscript(scheduler, "explain", "{index}", "--in=a b's/{index}/{index}.pt", "{other}")
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
    text = jobscript("slurm", "--module", name, "explain")
    text = f"{command}\nLOADEDMODULES=a\n{text.partition('set -euo pipefail')[0]}\necho continues\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == ((0, "continues\n") if is_loaded else (1, "")), done.stderr
    assert is_loaded or f"module load {name}: it is not loaded (LOADEDMODULES=a)" in done.stderr


def test_it_can_be_written_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    assert jobscript("slurm", "-o", str(path), "-m", "timeit") == ""
    assert os.access(path, os.X_OK)
    assert "set -- -m timeit\n" in path.read_text()
    refused(["--scheduler", "slurm", "-o", str(tmp_path / "no" / "job.sh"), "-m", "timeit"], "--output")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--mpi lam", "'srun', 'openmpi', 'intelmpi', 'mpich'"),
        ("--scheduler pbs --mpi srun", "ranks are started by openmpi or"),
        ("--scheduler lsf --mpi openmpi", "started by jsrun"),
        ("--scheduler lsf --submit", "bsub is not on PATH"),
        ("--time-limit 60", "for example 1:30:00"),
        ("--nodes 0", "--nodes: '0'"),
        ("--name my|job", "'my job' is not one word"),
        ("--log a|b", "'a b' is not one word"),
        ("--queue a\n#SBATCH|--nodes=99", "is not one word"),
        ("--directive a\nb", "'a\\nb' is not one line"),
        ("--memory 64", "--memory: '64'"),
        ("--gpus-per-node h200:0", "'h200:0' is no number of GPUs"),
        ("--output=", "argument -o/--output: the path is empty"),
        ("--scheduler pbs --gpus-per-node h200:4", "--scheduler pbs does not take a GPU's type"),
        ("--scheduler lsf --memory 64G", "all the memory of its hosts"),
        ("--scheduler slurm --gpus-per-node 4 --ranks-per-node 8", "each rank needs a GPU of its own"),
        ("--scheduler slurm missing.py", "missing.py"),
        ("--scheduler pbs --mpi mpich", "mpirun is openmpi's; load mpich's"),
    ],
)
def test_bad_requests_are_refused_in_a_line(arguments: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(mpirun_path()).parent), prepend=os.pathsep)
    refused([word.replace("|", " ") for word in [*arguments.split(" "), "workloads.mnist"]], told)


def test_what_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIRUN", "/no/mpirun")
    refused(["--scheduler", "pbs", "workloads.mnist"], "MPIRUN=/no/mpirun is no program")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(["explain"], "none of sbatch, qsub and bsub is here")


@pytest.mark.parametrize("name", site_names())
def test_a_sites_script_is_a_shells_and_says_where_it_is_from(name: str) -> None:
    site = load_site(name)
    with redirect_stdout(io.StringIO()) as printed:
        write_job_script(JOB, ["--site", name, "--account", "me", "workloads.linear"])
    text = printed.getvalue()
    assert f"{site.page}, read on {site.read}. Not run there." in text
    assert f"export RUNNER_SITE={name}\n" in text
    shown = "".join(f'echo "{variable}=${variable}"; ' for variable in site.variables)
    exports = "\n".join(line for line in text.splitlines() if line.startswith("export "))
    done = subprocess.run(
        ["bash", "-euc", f"{exports}\n{shown}true"], capture_output=True, text=True, check=True, env={}
    )
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == dict(site.variables)
    assert all(f"load {module}" in text for module in site.modules)
    assert all(word in text for word in site.launch)


def test_options_override_a_sites(tmp_path: Path) -> None:
    with redirect_stdout(io.StringIO()) as printed:
        write_job_script(
            JOB,
            ["--site", "csc", "--gpus-per-node", "2", "--queue", "gpusmall", "--module", "mine", "workloads.linear"],
        )
    text = printed.getvalue()
    assert "--gpus-per-node=2\n" in text
    assert "--partition=gpusmall\n" in text
    assert text.index("load pytorch") < text.index("load mine")
    with redirect_stdout(io.StringIO()) as printed:
        write_job_script(JOB, ["--site", "csc", "--gpus-per-node", "0", "workloads.linear"])
    assert "--gpus-per-node" not in printed.getvalue()
    assert "--device" not in printed.getvalue()


def test_a_script_says_which_of_a_sites_options_a_tool_does_not_use() -> None:
    with redirect_stdout(io.StringIO()) as printed:
        write_job_script(JOB, ["--site", "lumi", "smoke"])
    assert "# smoke starts its ranks itself, without the site's --cpu-bind=mask_cpu:" in printed.getvalue()


def test_sites_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    refused(["--site", "lumy", "workloads.linear"], "--site lumy: there is no such profile")
    refused(
        ["--site", "lumi", "--gpus-per-node", "2", "workloads.linear"],
        "for 8 GPUs, 8 ranks per node and 7 cores per rank, and not for 2 GPUs, 2 ranks per node and 7 cores",
    )
    refused(
        ["--site", "lumi", "--cores-per-rank", "3", "workloads.linear"], "and not for 8 GPUs, 8 ranks per node and 3"
    )
    refused(["--site", "csc", "--scheduler", "pbs", "workloads.linear"], "its options are for slurm and srun")
    file = tmp_path / "mine.toml"
    whole = 'title = "t"\npage = "p"\nread = 2026-11-29\nscheduler = "slurm"\n'
    file.write_text(whole)
    assert read_site("mine", file).title == "t"
    for more, told in {
        'modul = ["a"]': "has an unknown key 'modul'; take modules",
        "modules = 3": "modules = 3 is no list",
        "modules = [3]": "modules = [3] is no list",
        "gpus_per_node = true": "gpus_per_node = True is no int",
        "a = ": "Invalid",
        'mpi = "lam"': "mpi = 'lam' is none of srun, ",
        'mpi = "openmpi"\nlaunch = ["--x"]': "launch is for srun and PALS' mpiexec, and not for openmpi",
        "cores_per_rank = 0": "cores_per_rank = 0 and gpus_per_node = 0 are too small",
        'device = "gpu"': "device = 'gpu' is none of auto, cpu, cuda, xpu",
        'queue = "a b"': "'a b' is not one word",
        'note = "a\\necho x"': "note has a text of several lines",
        'variables = {"A-B" = "1"}': "'A-B' is no variable's name",
    }.items():
        file.write_text(whole + more + "\n")
        with pytest.raises(UsageError, match=re.escape(told.partition(";")[0])):
            read_site("mine", file)
    file.write_text(whole.replace("slurm", "slurmm"))
    with pytest.raises(UsageError, match="scheduler = 'slurmm' is none of slurm, pbs, lsf"):
        read_site("mine", file)
    file.write_text('title = "t"\n')
    with pytest.raises(UsageError, match="is not complete"):
        read_site("mine", file)
