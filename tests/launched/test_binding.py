"""``--bind`` under a real mpirun: what the kernel says of each rank's threads and data loaders."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.launching import RUNNER, mpirun, ok, own_lines, path_of

PROGRAM = path_of("stays_on_its_cores")
CORES = sorted(os.sched_getaffinity(0))
# A launcher, or a user's wrapper, that leaves all ranks on one core.
ON_ONE = ["taskset", "-c", str(CORES[0])]
# A scheduler's job that has this host's cores alone.
ALONE = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": str(os.cpu_count())}

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be divided")


def found(*options: str, wrapper: tuple[str, ...] | list[str] = (), **environment: str) -> list[dict[str, Any]]:
    done = ok(mpirun(2, *wrapper, *RUNNER, *options, PROGRAM, **environment))
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["threads"] == rank["worker"] == rank["cores"]
    return sorted(ranks, key=lambda rank: int(rank["rank"]))


@pytest.mark.parametrize("way", ["on one core", "in a job", "OpenMP binds"])
def test_ranks_on_the_same_cores_get_their_own(way: str) -> None:
    more = {"on one core": {}, "in a job": ALONE, "OpenMP binds": ALONE | {"OMP_PROC_BIND": "true"}}[way]
    first, second = found(wrapper=ON_ONE if way == "on one core" else (), **more)
    assert not {*first["cores"]} & {*second["cores"]}
    assert len(first["cores"]) == len(second["cores"]) == first["openmp"] == len(CORES) // 2


def test_other_bindings_are_kept() -> None:
    assert [rank["cores"] for rank in found()] == [CORES, CORES], "other jobs may compute here"
    assert [rank["cores"] for rank in found("--bind=none", wrapper=ON_ONE)] == [CORES[:1]] * 2
    last, first = CORES[-1], CORES[0]
    assert [rank["cores"] for rank in found(f"--bind={last}:{first}")] == [[last], [first]]


def test_explain_says_what_the_launcher_did_and_what_the_runner_made_of_it() -> None:
    facts = json.loads(ok(mpirun(2, *ON_ONE, *RUNNER, "explain", "--json")).stdout)
    assert facts["binding"] == f"each rank has cores of its own by --bind, where Open MPI gave 2 ranks cores {CORES[0]}"
    assert [rank["given_cores"] for rank in facts["ranks"]] == [str(CORES[0])] * 2
    assert len({rank["core_list"] for rank in facts["ranks"]}) == 2


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{0}:{0}", "core {0} is named for local ranks 0 and 1"),
        ("{0}:4000", "may not use core 4000"),
        ("{0}", "names cores for 1 rank, and host"),
        ("cores", "neither auto, none nor a list of cores"),
    ],
)
def test_a_list_that_cannot_be_is_refused_in_one_line(value: str, said: str) -> None:
    done = mpirun(2, *RUNNER, f"--bind={value.format(CORES[0])}", PROGRAM)
    (line,) = own_lines(done)
    assert said.format(CORES[0]) in line
    assert done.returncode == 2
