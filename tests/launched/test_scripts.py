"""Unmodified torchrun scripts under a real mpirun."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGUSR1
from typing import Any

import pytest

from tests.launching import (
    PROGRAMS,
    RUNNER,
    WAYS_BY_OWN_STORE,
    WAYS_BY_THE_STORE,
    finish,
    folder_of,
    free_port,
    ok,
    own_lines,
    path_of,
    runner,
    start,
    torchrun,
    under_mpirun,
)

VARIABLES = (path_of("torchrun_variables"), "--lr", "0.1", "-x")


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def by_rank(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What torchrun_variables.py found on each rank."""
    return sorted(json_lines(ok(done).stdout), key=lambda rank: int(rank["variables"]["RANK"]))


def test_a_script_finds_what_torchrun_gives(tmp_path: Path) -> None:
    """The variables' names and the values that do not name a host or a port are torchrun's."""
    found = by_rank(runner(2, *VARIABLES, cwd=tmp_path))
    assert [int(rank["variables"]["RANK"]) for rank in found] == [0, 1]
    assert sorted(int(rank["variables"]["LOCAL_RANK"]) for rank in found) == [0, 1]
    for rank in found:
        variables = rank["variables"]
        assert {variables[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")} == {"2"}
        assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"]) == ("0", "1")
        assert variables["ROLE_RANK"] == variables["RANK"]
        assert variables["MASTER_PORT"] != "29500", "torchrun's usual port, which another program may have"
        assert rank["argv"] == [path_of("torchrun_variables"), "--lr", "0.1", "-x"]
        assert rank["path0"] == str(folder_of("torchrun_variables"))
        assert rank["name"] == "__main__"
        assert rank["file"] == path_of("torchrun_variables")
        assert rank["is_main"]
        assert rank["package"] is None
        assert not rank["initialized"]
        assert rank["elastic"]
    assert len({rank["variables"]["TORCHELASTIC_RUN_ID"] for rank in found}) == 1
    errors = {Path(rank["variables"]["TORCHELASTIC_ERROR_FILE"]) for rank in found}
    assert len(errors) == 2
    assert not any(file.exists() for file in errors), "where there was no error, nothing is left behind"
    chance = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}

    def same(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            rank | {"variables": {name: value for name, value in rank["variables"].items() if name not in chance}}
            for rank in found
        ]

    theirs = by_rank(torchrun(2, *VARIABLES))
    if "TORCHELASTIC_SIGNALS_TO_HANDLE" not in theirs[0]["variables"]:  # in torch 2.4
        chance.add("TORCHELASTIC_SIGNALS_TO_HANDLE")
    served = [{rank["variables"].pop("TORCHELASTIC_USE_AGENT_STORE") for rank in one} for one in (found, theirs)]
    assert served in ([{"1"}, {"True"}], [{"1"}, {"False"}])  # (the second in torch 2.4)
    assert same(found) == same(theirs)


def test_ddp_with_a_distributed_sampler() -> None:
    """A group that is not destroyed, and data loaders' processes, included."""
    done = ok(runner(2, path_of("ddp_training"), "--workers", "1", "--no-destroy"))
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank} steps 16 same True" for rank in range(2)]
    assert "terminate" not in done.stderr


@pytest.mark.parametrize(
    ("ranks", "ways"),
    [
        *((ranks, (*WAYS_BY_OWN_STORE, way)) for ranks, way in zip((1, 2, 2), WAYS_BY_THE_STORE, strict=False)),
        (2, WAYS_BY_THE_STORE[-1:]),
    ],
)
def test_all_ways_to_make_a_group(ranks: int, ways: tuple[str, ...], tmp_path: Path) -> None:
    done = ok(runner(ranks, path_of("ways_to_initialise"), *ways, cwd=tmp_path))
    total = ranks * (ranks + 1) // 2
    wanted = [f"{way}: rank {rank}: {total}" for way in ways for rank in range(ranks)]
    assert sorted(done.stdout.splitlines()) == sorted(wanted)


def test_a_script_that_sets_its_own_rendezvous_address() -> None:
    """As courses teach it for mpirun: rank and size from the MPI's variables, MASTER_ADDR and MASTER_PORT by itself."""
    done = ok(runner(2, path_of("sets_its_own_master"), str(free_port())))
    assert len([line for line in done.stdout.splitlines() if "of 2: sum 1" in line]) == 2


def test_processes_that_a_script_spawns_are_no_ranks_of_the_job() -> None:
    done = ok(runner(2, path_of("spawns_its_ranks"), str(free_port())))
    assert done.stdout.count("of 2 at") == done.stdout.count("sum 3") == 4


@pytest.mark.parametrize(("name", "line"), [("spawns", "rank {rank}: [42]"), ("uses_mpi4py", "rank {rank} of 3: 6")])
def test_scripts_without_a_group(name: str, line: str) -> None:
    done = ok(runner(3, path_of(name)))
    assert sorted(done.stdout.splitlines()) == [line.format(rank=rank) for rank in range(3)]
    assert not own_lines(done)


def of_copies(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in own_lines(done) if "independent copies" in line]


def test_copies_of_a_script_for_one_process_are_told_of() -> None:
    """Not refused: a sweep is started like this. A script that communicates by MPI is none."""
    done = ok(runner(2, path_of("trains_alone"), "--lr", "0.1"))
    assert done.stdout == "trained\n" * 2
    (line,) = of_copies(done)
    assert "trains_alone.py never called init_process_group(), so 2 independent copies ran. To train together" in line
    assert of_copies(ok(runner(2, path_of("trains_alone"), "by MPI"))) == []
    knows = "import os, torch; print(os.environ['RANK'])"  # and takes its share by that
    assert of_copies(ok(runner(2, "-c", knows))) == []
    assert of_copies(ok(runner(1, path_of("trains_alone")))) == []


def test_copies_that_run_for_long_are_told_of_after_a_minute_and_once() -> None:
    """But not if the script may make a group yet."""
    long = "import sys, time, torch; time.sleep(70); print('lines', file=sys.stderr)"
    with ThreadPoolExecutor() as pool:
        plain, later = pool.map(lambda code: ok(runner(2, "-c", code)), (long, f"{long}; # init_process_group()"))
    (line,) = of_copies(plain)
    assert "has not called init_process_group() in its first minute, so 2 independent copies run." in line
    assert plain.stderr.index(line) < plain.stderr.index("lines")
    (line,) = of_copies(later)
    assert "never called init_process_group(), so 2 independent copies ran." in line


FORGETS = path_of("forgets_the_sampler")


@pytest.mark.parametrize(("what", "kind"), [("in order", "SequentialSampler"), ("accumulates", "RandomSampler")])
def test_a_forgotten_sampler_is_told_of(what: str, kind: str) -> None:
    done = ok(runner(2, FORGETS, what))
    assert done.stdout == "trained\n" * 2
    (line,) = (line for line in own_lines(done) if "equal" in line)
    assert f"all 2 ranks train on equal batches: their DataLoader has a {kind}, which does not divide the data" in line


@pytest.mark.parametrize("what", ["sampler", "stream", "by hand", "own seeds", "evaluation", "compiled"])
def test_batches_that_differ_or_are_not_trained_on_are_not_told_of(what: str) -> None:
    done = ok(runner(2, FORGETS, what))
    assert done.stdout == "trained\n" * 2
    assert "equal batches" not in done.stderr


@pytest.mark.parametrize(("how", "before"), [("Init", False), ("Init_thread", False), ("asks", True)])
def test_a_script_may_initialise_mpi_itself(how: str, before: bool) -> None:
    """As under mpirun alone: to the script MPI is not initialised before it does that."""
    done = ok(runner(2, path_of("initialises_mpi"), how))
    assert done.stdout.splitlines() == [f"{how} {before} True 2"] * 2


def test_a_rank_may_finalise_mpi_itself() -> None:
    ok(runner(3, "-c", "import os; from mpi4py import MPI; os.environ['RANK'] == '1' and MPI.Finalize()"))


def test_a_module_runs_as_python_m_would() -> None:
    done = ok(runner(2, "-m", "package.train", "--epochs", "3", cwd=PROGRAMS / "environment"))
    found = json_lines(done.stdout)
    wanted = {"name": "__main__", "spec": "package.train", "package": "package", "argv": ["--epochs", "3"]}
    assert found == [wanted | {"path0": str(PROGRAMS / "environment")}] * 2


@pytest.mark.parametrize(
    ("how", "code", "told"), [("7", 7, ""), ("message", 1, "nothing to do here"), ("kill", 137, "rank 2 of 3 on host")]
)
def test_exit_codes_pass_through(how: str, code: int, told: str) -> None:
    done = runner(3, path_of("exits"), "2", how)
    assert done.returncode == code
    assert told in done.stderr
    assert ("killed by SIGKILL" in done.stderr) == (how == "kill")
    # A launcher's pipe would hold lines back, and lose them when the program is killed.
    assert how != "kill" or "a line" in done.stdout


def test_a_forked_child_may_end_as_it_likes() -> None:
    done = ok(runner(2, path_of("forks"), "0", "3"))
    assert done.stdout.count("child 0") == done.stdout.count("child 3") == 2
    assert done.stdout.count("parent done") == 2


def test_a_script_is_compiled_and_found_as_python_does(tmp_path: Path) -> None:
    """Its annotations are not strings, its folder is that of the file itself, and __file__ is absolute."""
    (tmp_path / "link.py").symlink_to(PROGRAMS / "environment" / "linked" / "train.py")
    assert ok(runner(1, "link.py", cwd=tmp_path)).stdout == "[<class 'float'>] True\n"


def test_a_signal_arrives_once() -> None:
    """Open MPI forwards SIGUSR1 to each rank's whole process group."""
    process = start(*under_mpirun(1, *RUNNER, path_of("counts_signals")))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(SIGUSR1)
    assert finish(process).stdout == "signals 1\n"


def test_lines_of_several_ranks_do_not_run_into_one_another(tmp_path: Path) -> None:
    """Python unbuffered, as torchrun starts it, writes a line's end by itself."""
    (tmp_path / "prints.py").write_text("for _ in range(5000): print('x' * 50)\n")
    done = ok(torchrun(2, *RUNNER[1:], "prints.py", cwd=tmp_path))
    assert set(done.stdout.splitlines()) == {"x" * 50}


def has_summed(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether ddp_allreduce.py has run on two ranks."""
    return sorted(ok(done).stdout.splitlines()) == ["rank 0 of 2: 2", "rank 1 of 2: 2"]


def test_a_module_may_have_a_tools_name(tmp_path: Path) -> None:
    (tmp_path / "smoke.py").symlink_to(path_of("says_its_rank"))
    done = ok(runner(2, "-m", "smoke", cwd=tmp_path))
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]


def test_under_torchrun_its_own_store_and_variables_are_kept() -> None:
    done = ok(torchrun(2, *RUNNER[1:], path_of("ways_to_initialise"), "own-store"))
    assert sorted(done.stdout.splitlines()) == ["own-store: rank 0: 3", "own-store: rank 1: 3"]


def test_ranks_that_torchrun_starts_again_meet_anew(tmp_path: Path) -> None:
    """By torchrun's own store they would find addresses of ranks that are gone."""
    done = ok(torchrun(3, "--max-restarts", "1", *RUNNER[1:], path_of("killed_once"), str(tmp_path)))
    assert "killed by SIGKILL" in done.stderr
    assert (tmp_path / "went-on").exists()


@pytest.mark.parametrize("port", [[], [str(free_port())]], ids=["the job's", "its own"])
def test_a_script_that_runs_its_training_in_another_process(port: list[str]) -> None:
    assert has_summed(runner(2, path_of("trains_in_a_child"), path_of("ddp_allreduce"), *port))


@pytest.mark.parametrize("before", [[], ["torch"]], ids="".join)
def test_a_script_that_puts_another_in_its_place(before: list[str]) -> None:
    """As one does that sets variables and starts itself again."""
    assert has_summed(runner(2, path_of("puts_another_in_its_place"), path_of("ddp_allreduce"), *before))
