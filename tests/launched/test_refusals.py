"""Bad input and ranks that do not fit: one clear line, exit code 2, no traceback, no hang."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from tests.launching import (
    BASE_PYTHON,
    RUNNER,
    fake_torch,
    free_port,
    mpirun,
    ok,
    one_rank_each,
    own_lines,
    packages_without,
    path_of,
    run,
    runner,
)
from tests.results import refused


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["workloads.mnits"], ["'workloads.mnits'", "workloads.mnist"]),
        (["missing.py"], ["missing.py"]),
        (["--devise", "cpu", "x.py"], ["--devise"]),
        (["workloads.mnist", "--device", "cuda"], ["--device cpu"]),
    ],
    ids=["unknown target", "no script", "unknown option", "no GPU"],
)
def test_before_torch(arguments: list[str], texts: list[str], tmp_path: Path) -> None:
    refused(runner(2, *arguments, PYTHONPATH=fake_torch("2.14.0", tmp_path)), *texts)


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("plan workloads.mnist --gpus 4 --memory 80XB", {}),
        ("compare workloads.mnist --engines ddp:gloo,fdsp", {}),
        ("compare workloads.mnist --engines ddp,tp2", {}),  # of one rank
        ("compare workloads.mnist --tp 2", {}),
        ("workloads.models", {}),
        ("workloads.mnist", {"OMPI_COMM_WORLD_RANK": "0"}),
        ("workloads.mnist", {"RANK": "0", "WORLD_SIZE": "2"}),
    ],
)
def test_before_torch_in_a_single_process(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    refused(run(*RUNNER, *command.split(), PYTHONPATH=fake_torch("2.14.0", tmp_path), **environment))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--batch-size 0", "--batch-size: '0'"),
        ("--backend nccl", "--backend nccl: no GPU is used"),
        ("--backend mpi", "was built without mpi; say --backend gloo"),
        ("--checkpoint-dir /proc/nothing", "--checkpoint-dir: cannot write in /proc/nothing"),
    ],
)
def test_a_workloads_options(arguments: str, text: str, tmp_path: Path) -> None:
    refused(runner(2, "workloads.mnist", *arguments.split(), cwd=tmp_path), text)


def test_ranks_with_other_arguments() -> None:
    script = path_of("only_computes")
    done = run(*one_rank_each([*RUNNER, script, "--lr", "1"], [*RUNNER, script, "--lr", "2"]))
    refused(done, "--lr 1 on rank 0", "--lr 2 on rank 1")


def test_ranks_with_other_options_of_the_runner() -> None:
    script = path_of("only_computes")
    done = run(*one_rank_each([*RUNNER, "--collective-timeout", "9", script], [*RUNNER, script]))
    refused(done, "the ranks differ in the runner's options: --collective-timeout 9.0 on rank 0")


@pytest.mark.parametrize("rank", [0, 1])
def test_another_program_that_waits_for_others_in_mpi(rank: int) -> None:
    """Of two programs of one mpirun each waits for the other's first call; that is seen within seconds, not at the time limit."""
    other = [RUNNER[0], "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"]
    ours = [*RUNNER, path_of("only_computes")]
    done = run(*one_rank_each(*([other, ours] if rank == 0 else [ours, other])))
    refused(done, f"rank {rank} is another program ({RUNNER[0]} -c ", "start all ranks as python -m runner")


def test_another_program_that_makes_the_same_calls() -> None:
    """It takes part in the exchange of records, and gets neither the records nor the job's key."""
    code = "from mpi4py import MPI; c = MPI.COMM_WORLD; c.gather({'rank': 1}); print('got', c.bcast(None), flush=True)"
    done = run(*one_rank_each([*RUNNER, path_of("only_computes")], [RUNNER[0], "-c", code]))
    refused(done, "another program, or another version of the runner, runs as rank 1; start all ranks as")
    assert "'key'" not in done.stdout  # (it may be ended before it prints)


def test_another_program_without_mpi() -> None:
    """It may be a wrapper that starts the runner later, so its ranks wait until their time is over, and name it."""
    done = run(*one_rank_each([*RUNNER, "--timeout", "10", path_of("only_computes")], ["sleep", "100"]))
    assert done.returncode == 1
    first, second, *_ = own_lines(done)
    assert "waits for the other ranks: rank 1 runs another program so far (sleep 100)" in first
    assert "has not met all other ranks: rank 1 is another program (sleep 100); start all ranks" in second


@pytest.mark.parametrize(
    ("version", "arguments", "texts"),
    [
        ("2.3.1", [path_of("only_computes")], ["torch 2.4 or newer, and this is 2.3.1", "'torch>=2.4'"]),
        ("2.4.1", ["workloads.llama"], ["workloads.llama needs torch 2.5 or newer", "'torch>=2.5'"]),
        ("2.6.0", ["workloads.mnist", "--strategy", "fsdp"], ["2.9 or newer, and this is 2.6.0", "--strategy zero1"]),
    ],
)
def test_a_torch_that_is_too_old(version: str, arguments: list[str], texts: list[str], tmp_path: Path) -> None:
    """It is not even imported."""
    refused(runner(2, *arguments, PYTHONPATH=fake_torch(version, tmp_path / "fake")), *texts)


@pytest.mark.parametrize("version", ["2.3.1", "2.4.1"])
def test_of_a_torch_that_is_too_old_explain_and_doctor_tell(version: str, tmp_path: Path) -> None:
    path = fake_torch(version, tmp_path)
    lacks = " ".join(
        ok(run(*RUNNER, "explain", COLUMNS="200", PYTHONPATH=path)).stdout.partition("not with it")[2].split()
    )
    assert "--pp (torch 2.9)" in lacks
    assert "workloads.llama (torch 2.5)" in lacks
    done = run(*RUNNER, "doctor", "--json", "--only", "versions", PYTHONPATH=path)
    (found,) = json.loads(done.stdout)["checks"]
    assert found["status"] == ("fail" if version == "2.3.1" else "ok")
    assert ("the runner needs torch 2.4" if version == "2.3.1" else "--pp (2.9)") in found["detail"]


def test_explain_without_torch(tmp_path: Path) -> None:
    path = packages_without("torch", tmp_path / "packages")
    done = ok(mpirun(2, BASE_PYTHON, "-m", "runner", "explain", "--json", PYTHONPATH=path))
    assert json.loads(done.stdout)["versions"]["torch"] == ""
    done = mpirun(2, BASE_PYTHON, "-m", "runner", "workloads.mnist", PYTHONPATH=path)
    refused(done, "pip install torch")


def test_processes_that_each_believe_to_be_alone() -> None:
    """A container that clears the environment, here in a shell: N processes that would each be rank 0 of 1."""
    done = mpirun(2, "bash", "-c", '"$@"; exit $?', "bash", "env", "-i", *RUNNER, "workloads.mnist")
    refused(done, "started this process, but none of its rank variables is set", "let the variables through")


def test_the_users_address_and_port() -> None:
    with socket.create_server(("", 0)) as server:
        taken = str(server.getsockname()[1])
        for address, port, text in (
            ("localhost", taken, f"cannot listen on MASTER_PORT={taken}"),
            ("no-such-host.invalid", "1", "MASTER_ADDR=no-such-host.invalid does not resolve"),
        ):
            done = runner(2, "--timeout", "20", "explain", MASTER_ADDR=address, MASTER_PORT=port)
            assert (done.returncode, text in done.stderr) == (2, True), done.stderr


def test_ranks_that_never_come_are_waited_for_in_bounded_time() -> None:
    by_hand = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    done = run(*RUNNER, "--timeout", "2", "explain", **by_hand)
    refused(done, "ranks 1-2", code=1)


@pytest.mark.parametrize("there", ["a file", "a link", "a folder that others can write"])
def test_a_folder_for_socket_files_that_is_not_ones_own(there: str) -> None:
    by_hand = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short) / f"runner-{os.getuid()}"
        if there == "a file":
            folder.write_text("")
        elif there == "a link":
            (Path(short) / "elsewhere").mkdir()
            folder.symlink_to(Path(short) / "elsewhere")
        else:
            folder.mkdir()
            folder.chmod(0o777)
        done = run(*RUNNER, "--rendezvous", "file", "--timeout", "2", "explain", TMPDIR=short, **by_hand)
    refused(done, str(folder), "set TMPDIR to a folder of your own", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--backend gloo script.py", "a script names its backend itself"),
        ("--backend gloo -m script", "a script names its backend itself"),
        ("--backend mpi4py --no-python sh -c true", "--no-python starts a process"),
        ("--backend gloo doctor", "it has options of its own"),
        ("--hang-timeout 60 explain", "it is for workloads"),
        ("--time-limit 1:00 script.py", "add --on-preempt"),
        ("--on-preempt usr1 workloads.linear", "a workload saves by itself"),
        ("--bind 0:1 supervise workloads.linear", "give it to the runner in the command of the job"),
        ("--stage script.py jobscript --scheduler slurm script.py", "give it to the runner in the command of the job"),
    ],
)
def test_an_option_without_effect(arguments: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')\n")
    done = run(*RUNNER, *arguments.split(), cwd=tmp_path)
    refused(done, "has no effect on", words)
    assert done.stdout == ""
