"""``explain`` under real launchers, by each of the five ways to meet."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from runner.tools.registry import TOOLS
from runner.versions.features import FEATURES
from runner.versions.torch_build import release_of
from tests.launching import (
    BASE_PYTHON,
    RUNNER,
    clean_environment,
    fake_torch,
    folder_of,
    free_port,
    mpirun,
    mpirun_path,
    ok,
    packages_without,
    run,
    runner,
    torchrun,
)
from tests.terminal import on_terminal

HOST = socket.gethostname()


def facts(ranks: int, *options: str, **environment: str) -> dict[str, Any]:
    done = ok(runner(ranks, *options, "explain", "--json", **environment))
    found: dict[str, Any] = json.loads(done.stdout)  # one object, nothing else
    assert found["size"] == ranks
    assert [rank["rank"] for rank in found["ranks"]] == list(range(ranks))
    assert sorted(rank["local_rank"] for rank in found["ranks"]) == list(range(ranks))
    assert [host["name"] for host in found["hosts"]] == [HOST]
    return found


@pytest.mark.needs("mpi4py")
@pytest.mark.parametrize("ranks", [1, 4])
def test_under_mpirun(ranks: int) -> None:
    found = facts(ranks)
    assert found["launcher"]["name"] == "openmpi"
    assert all(rank["sources"]["rank"] == "OMPI_COMM_WORLD_RANK" for rank in found["ranks"])
    assert found["rendezvous"]["way"] == ("mpi" if ranks > 1 else "single")
    assert found["backend"]["name"] == ("mpi4py" if ranks > 1 else "gloo")
    assert found["endpoint"]["interface"] == "lo"
    assert found["endpoint"]["port"] > 0
    assert found["settings"]["GLOO_SOCKET_IFNAME"] == "lo"


def test_the_mesh_of_a_workload_with_these_options() -> None:
    options = ["--strategy", "fsdp", "--tp", "2", "--pp", "2", "--pp-schedule", "zbv"]
    found = json.loads(ok(runner(8, "explain", "--json", *options)).stdout)
    assert found["mesh"] == {"replicate": 1, "shard": 2, "pipeline": 2, "tensor": 2}
    places = [rank["mesh"] for rank in found["ranks"]]
    assert [place["stages"] for place in places] == [[0, 3]] * 4 + [[1, 2]] * 4
    assert [place["tensor"] for place in places] == [0, 1] * 4
    assert [place["data"] for place in places] == [place["shard"] for place in places] == [0, 0, 1, 1] * 2
    (titles,) = [line for line in ok(runner(8, "explain", *options)).stdout.splitlines() if line.startswith("rank ")]
    assert titles.split("process")[1].split("  ") == ["", "stages", "shard", "part of layers"]
    refused = runner(4, "explain", "--tp", "3")
    assert (refused.returncode, "tensor(3)" in refused.stderr) == (2, True)


def test_tables_are_printed_once_without_colours_and_on_a_narrow_terminal_no_word_is_broken() -> None:
    """Open MPI's ranks see a terminal whatever mpirun's own output is."""
    wide = ok(runner(2, "explain")).stdout
    assert wide.count("launcher") == 1
    assert "Open MPI: OMPI_COMM_WORLD_RANK=0 set" in wide
    assert "\x1b" not in wide
    narrow = on_terminal(80, mpirun_path(), "-np", "2", *RUNNER, "explain")
    assert max(map(len, narrow)) <= 80
    # Ports and processes are others in each run.
    words = [{re.sub(r"\d+", "0", word) for word in " ".join(lines).split()} for lines in (wide.splitlines(), narrow)]
    assert words[0] == words[1]
    assert "OMPI_COMM_WORLD_LOCAL_SIZE" in words[1]
    assert "GLOO_SOCKET_IFNAME=lo" in words[1]  # NCCL finds its own interface on one host


def test_a_workload_gets_what_explain_shows() -> None:
    found = facts(2)
    expected = f"{found['backend']['name']} {found['settings']['OMP_NUM_THREADS']}"
    seen = ok(runner(2, "shows_its_settings", cwd=folder_of("shows_its_settings"))).stdout.splitlines()
    assert sorted(seen) == [f"{rank} {expected}" for rank in range(2)]


@pytest.mark.needs("mpi4py")
def test_what_the_user_sets_is_kept() -> None:
    port = free_port()
    own = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth7", "OMP_NUM_THREADS": "3"}
    found = facts(2, **own)
    assert found["rendezvous"]["way"] == "env"
    assert found["backend"]["name"] == "gloo"
    assert (found["endpoint"]["host"], found["endpoint"]["port"]) == ("localhost", port)
    assert not {"GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"} & {*found["settings"]}
    assert [rank["threads"] for rank in found["ranks"]] == [3, 3]


def test_by_a_host_list(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("127.0.0.1\n")
    found = facts(4, "--rendezvous", "hosts", PBS_NODEFILE=str(nodes), PBS_JOBID="1.server")
    assert found["rendezvous"]["way"] == "hosts"


def test_under_torchrun_with_its_store() -> None:
    found = json.loads(ok(torchrun(2, *RUNNER[1:], "explain", "--json")).stdout)
    serves = release_of(version("torch"))[:2] > (2, 4)  # 2.4's leaves the port to rank 0
    assert (found["launcher"]["name"], found["rendezvous"]["way"]) == ("torchrun", "torchrun" if serves else "file")
    assert [rank["local_rank"] for rank in found["ranks"]] == [0, 1]


def test_without_mpi4py_a_single_host_still_works(tmp_path: Path) -> None:
    path = packages_without("mpi4py", tmp_path / "packages")
    found = json.loads(ok(mpirun(2, BASE_PYTHON, "-m", "runner", "explain", "--json", PYTHONPATH=path)).stdout)
    assert found["rendezvous"] == {"way": "file", "why": "one host; no MPI: mpi4py is not installed"}


def test_a_single_process() -> None:
    found = json.loads(ok(run(*RUNNER, "explain", "--json")).stdout)
    assert (found["launcher"]["name"], found["size"]) == ("single", 1)


def test_by_a_file_where_a_containers_rank_is_reported_as_ignored() -> None:
    found = facts(2, "--rendezvous", "file", RANK="0", WORLD_SIZE="1")
    assert found["rendezvous"]["way"] == "file"
    assert found["ignored"][0]["variables"] == ["RANK", "WORLD_SIZE"]


def test_help_and_job_scripts_are_printed_once() -> None:
    assert ok(runner(2, "--help")).stdout.count("usage:") == 1
    assert ok(runner(2, "jobscript", "--scheduler", "slurm", "explain")).stdout.count("#!/bin/bash") == 1


@pytest.mark.parametrize(
    "target", ["", *(pytest.param(tool, marks=pytest.mark.needs(tool) if tool in FEATURES else ()) for tool in TOOLS)]
)
def test_help_fits_a_narrow_terminal_and_needs_no_torch(target: str, tmp_path: Path) -> None:
    path = fake_torch(version("torch"), tmp_path)
    text = ok(run(*RUNNER, *target.split(), "--help", COLUMNS="80", PYTHONPATH=path)).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "``" not in text


LOCALES = ({"PYTHONIOENCODING": "iso8859-1"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})


@pytest.mark.parametrize("locale", LOCALES, ids=str)
def test_a_locale_may_lack_characters(locale: dict[str, str], tmp_path: Path) -> None:
    """Those are printed as "?"; a file has them."""
    (tmp_path / "trän.py").touch()
    job_script = ["jobscript", "--scheduler", "slurm", "--output", "job.sh", "trän.py"]
    for command in ([*RUNNER, "explain"], [*RUNNER, "--help"], [*RUNNER, *job_script]):
        done = subprocess.run(command, cwd=tmp_path, env=clean_environment(**locale), capture_output=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii() or "iso8859-1" in locale.values()
    assert "trän.py" in (tmp_path / "job.sh").read_text(encoding="utf-8")
