"""supervise leaves out a host that has failed: the job continues on a spare one, or on those that are left."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess
from typing import Any

import pytest

from tests.cluster.launchers import BIN, LAUNCHERS, PREFIXES, batch
from tests.cluster.virtual import Cluster, cluster
from tests.launching import ROOT, RUNNER, clean_environment, folder_of, ok, own_lines, run
from tests.results import hosts, json_object, losses, metrics


@dataclass
class Supervised(Cluster):
    """A cluster whose launchers are started by supervise."""

    options: Sequence[str] = field(default_factory=tuple)

    def run(self, host: str, command: Sequence[str], **more: Any) -> CompletedProcess[str]:
        return super().run(host, [*RUNNER, "supervise", *self.options, "--", *command], **more)


@dataclass
class Unheard(Supervised):
    """The same without a pipe: on a host that is not reached any more processes hold it open."""

    def run(self, host: str, command: Sequence[str], **more: Any) -> CompletedProcess[str]:
        words = self.command(host, [*RUNNER, "supervise", *self.options, "--", *command])
        environment = clean_environment() | self.environment
        return subprocess.run(words, env=environment, cwd=self.folder, stdout=DEVNULL, stderr=DEVNULL, text=True)


def supervised(vc: Cluster, folder: Path, *options: str) -> Supervised:
    own = vars(vc) | {"environment": vc.environment | {"PYTHONPATH": f"{ROOT}:{folder_of('faulty')}"}}
    return Supervised(**own, options=["--log-dir", str(folder / "log"), *options])


def training(folder: Path, *arguments: str) -> list[str]:
    words = ["faulty", "--resume", "auto", "--checkpoint-dir", str(folder), "--milliseconds", "1", "--max-steps", "60"]
    return [*words, "--save-every", "end", "--save-every", "20steps", "--global-batch-size", "8", *arguments]


def test_a_job_goes_on_on_the_host_that_is_left(vc: Cluster, tmp_path: Path) -> None:
    program = training(tmp_path / "parts", "--fault", "agent", "--at", "31")
    done = ok(LAUNCHERS["openmpi5"](supervised(vc, tmp_path, "--min-ranks", "1"), [1, 1], [*RUNNER, *program]))
    assert f"{tmp_path}/parts/step-20," in done.stdout
    first, second = (json.loads(line) for line in (tmp_path / "log" / "attempts.jsonl").read_text().splitlines())
    assert (first["rank"], first["host"], first["is_lost"]) == (1, "node2", True)
    assert first["next"] == "started again without node2, on node1 with 1 ranks"
    assert (second["code"], second["next"]) == (0, "done")
    assert [line["step"] for line in metrics(tmp_path / "parts")] == list(range(1, 61))
    ok(run(*RUNNER, *training(tmp_path / "whole"), cwd=folder_of("faulty")))
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_a_host_that_is_not_reached_any_more(tmp_path: Path) -> None:
    program = training(tmp_path / "run", "--milliseconds", "50", "--max-steps", "120")
    with cluster(2) as own, ThreadPoolExecutor() as threads:
        job = Unheard(**vars(supervised(own, tmp_path, "--min-ranks", "1")))
        ended = threads.submit(LAUNCHERS["openmpi5"], job, [1, 1], [*RUNNER, *program])
        while not (tmp_path / "run" / "step-20").exists() and not ended.done():
            time.sleep(0.1)
        own.network("-n", "node2", "link", "set", "eth0", "down")
        assert ended.result().returncode == 0
    first, second = (json.loads(line) for line in (tmp_path / "log" / "attempts.jsonl").read_text().splitlines())
    assert (first["host"], first["is_lost"], second["code"]) == ("node2", True, 0)
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(1, 121))


def test_a_job_without_enough_hosts_ends(vc: Cluster, tmp_path: Path) -> None:
    program = training(tmp_path / "run", "--fault", "agent", "--at", "31")
    done = LAUNCHERS["srun"](supervised(vc, tmp_path, "--min-ranks", "2"), [1, 1], [*RUNNER, *program])
    assert done.returncode != 0
    assert "without node2 there is room for 1 ranks, on node1" in done.stderr


@pytest.mark.parametrize("launcher", ["openmpi4", "openmpi5", "mpich", "intelmpi"])
def test_a_spare_host_has_no_ranks_at_first(vc: Cluster, launcher: str, tmp_path: Path) -> None:
    done = ok(LAUNCHERS[launcher](supervised(vc, tmp_path, "--spares", "1"), [1, 1], [*RUNNER, "explain", "--json"]))
    assert hosts(json_object(done.stdout)) == {"node1": [0, 1]}


@pytest.mark.parametrize(
    "launcher",
    ["srun", f"{BIN}/mpirun --prtemca prte_if_include eth0 -np 2", f"{PREFIXES}/mpich/bin/mpiexec -iface eth0 -n 2"],
    ids=["srun", "openmpi5", "mpich"],
)
def test_the_hosts_of_a_slurm_job(vc: Cluster, launcher: str, tmp_path: Path) -> None:
    job = f"{launcher} {' '.join(RUNNER)} explain --json"
    line = f"{' '.join(RUNNER)} supervise --log-dir {tmp_path}/log --spares 1 -- {job}"
    done = ok(batch(vc, ["--nodes=2", "--ntasks-per-node=2"], line))
    assert hosts(json_object(done.stdout)) == {"node1": [0, 1]}


@pytest.mark.parametrize("launcher", ["srun", "openmpi5"])
def test_a_spare_host_takes_the_place_of_one_that_has_failed(vc: Cluster, launcher: str, tmp_path: Path) -> None:
    program = training(tmp_path / "run", "--fault", "agent", "--at", "31", "--once", str(tmp_path / "failed"))
    job = supervised(vc, tmp_path, "--spares", "1")
    if launcher == "srun":
        line = shlex.join([*RUNNER, "supervise", *job.options, "--", "srun", *RUNNER, *program])
        done = batch(Cluster(**vars(vc) | {"environment": job.environment}), ["--nodes=2", "--ntasks-per-node=2"], line)
    else:
        done = LAUNCHERS[launcher](job, [1, 1], [*RUNNER, *program])
    ok(done)
    first, second = (json.loads(line) for line in (tmp_path / "log" / "attempts.jsonl").read_text().splitlines())
    assert (first["host"], first["is_lost"]) == ("node1", True)
    assert "on node2" in first["next"]
    assert (second["code"], second["next"]) == (0, "done")
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(1, 61))


def test_hosts_that_are_not_known_are_refused(vc: Cluster, tmp_path: Path) -> None:
    done = supervised(vc, tmp_path, "--spares", "1").run("node1", ["srun", *RUNNER, "explain"])
    assert done.returncode == 2
    assert "--spares" in own_lines(done)[0]
