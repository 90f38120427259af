"""torch-mpi-runner beside python -m runner, where a user's folder has modules of this project's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import CONSOLE, RUNNER, mpirun, ok, one_rank_each, own_lines, path_of, run, under_mpirun

WAYS = pytest.mark.parametrize("way", [RUNNER, CONSOLE], ids=["module", "console"])


def job(way: list[str], *arguments: str, folder: Path) -> list[str]:
    """What two ranks print."""
    return sorted(ok(mpirun(2, *way, *arguments, cwd=folder)).stdout.splitlines())


@WAYS
def test_a_script_finds_its_own(way: list[str], tmp_path: Path) -> None:
    project, forms = tmp_path / "project", "runner.py workloads/__init__.py"
    for form in forms.split():
        (project / form).parent.mkdir(parents=True, exist_ok=True)
        (project / form).write_text(f"form = '{form}'\n")
    (project / "train.py").write_text("import runner, workloads\nprint(runner.form, workloads.form)\n")
    is_hidden = way is RUNNER  # in the script's folder python -m runner would be the script's
    folder, script = (tmp_path, "project/train.py") if is_hidden else (project, "train.py")
    assert job(way, script, folder=folder) == [forms] * 2


OURS = """\
import importlib.util
assert importlib.util.find_spec("runner") is not None
import runner
from runner import __version__
import runner.cli
import workloads.mnist
from runner.base.early_signals import EARLY
import runner.starting.launch
print(runner.cli.main.__module__, workloads.mnist.main.__module__, runner.starting.launch.EARLY is EARLY)
"""


@WAYS
def test_a_script_without_one_finds_ours(way: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OURS)
    assert job(way, "train.py", folder=tmp_path) == ["runner.cli workloads.mnist True"] * 2


def test_a_runner_in_the_working_folder_runs_under_python_m_only(tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text("print('the one of the folder')\n")
    (tmp_path / "train.py").write_text("print('the script')\n")
    assert job(RUNNER, "train.py", folder=tmp_path) == ["the one of the folder"] * 2
    assert job(CONSOLE, "train.py", folder=tmp_path) == ["the script"] * 2
    on_path = mpirun(2, *CONSOLE, "train.py", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert ok(on_path).stdout == "the script\nthe script\n"


TRAINING = ("workloads.linear", "--max-steps", "2", "--checkpoint-dir", "run")


@WAYS
def test_a_workload_is_the_users_where_both_have_it(way: list[str], tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    program = "from workloads.data import name\ndef main(run, argv):\n    print(name)\n"
    (tmp_path / "workloads" / "mnist.py").write_text(program)
    (tmp_path / "workloads" / "data.py").write_text("name = 'the user has it'\n")
    done = ok(mpirun(2, *way, "workloads.mnist", cwd=tmp_path))
    assert done.stdout.splitlines() == ["the user has it"] * 2
    told = "./workloads hides the runner's own workloads: workloads.mnist is ./workloads/mnist.py"
    assert own_lines(done) == [f"runner: {told}"]
    done = ok(mpirun(2, *way, *TRAINING, cwd=tmp_path))
    assert "done: 2 steps" in done.stdout
    assert not any("hides" in line for line in own_lines(done))


SPAWNS = """\
from torch.utils.data import DataLoader
from runner.training.run import Run

class Squares:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index**2

def main(run, argv):
    print([int(one) for one in DataLoader(Squares(), num_workers=1, batch_size=None, multiprocessing_context="spawn")])
"""


def test_a_workloads_processes_find_ours(tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text("raise SystemExit('it was imported')\n")
    (tmp_path / "squares.py").write_text(SPAWNS)
    assert job(CONSOLE, "squares", folder=tmp_path) == ["[0, 1, 4, 9]"] * 2


@pytest.mark.parametrize(
    "starts_again", [["--restart-in-place", "1"], ["supervise", "--log-dir", "log", "--"]], ids=["guard", "supervise"]
)
def test_ranks_start_again(starts_again: list[str], tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text("raise SystemExit('it was imported')\n")
    ranks = under_mpirun(2, *CONSOLE)
    command = [*CONSOLE, *starts_again, *ranks] if "supervise" in starts_again else [*ranks, *starts_again]
    ok(run(*command, path_of("killed_once"), str(tmp_path), cwd=tmp_path))
    assert (tmp_path / "went-on").exists()


def test_messages_name_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    other = [RUNNER[0], "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"]
    done = run(*one_rank_each([*CONSOLE, "train.py"], other), cwd=tmp_path)
    assert done.returncode == 2
    assert "start all ranks as torch-mpi-runner …" in done.stderr
