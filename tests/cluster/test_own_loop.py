"""A loop of one's own on two hosts has the losses of one process, with the runner before the script or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cluster.launchers import BIN, LAUNCHERS, Launch
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok, path_of
from tests.results import losses

PYTHON = [sys.executable]
SETTINGS = ["--global-batch-size", "16", "--dtype", "float64", "--checkpoint-dir"]


def horovodrun(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> CompletedProcess[str]:
    hosts = ",".join(f"{host}:{ranks}" for host, ranks in zip(vc.hosts, slots, strict=False))
    command = [str(BIN / "horovodrun"), "--gloo", "--network-interfaces", "eth0", "-np", str(sum(slots)), "-H", hosts]
    path = f"{vc.folder}:{BIN}:{os.environ['PATH']}"  # with what stands in for ssh
    return vc.run("node1", [*command, *program], PATH=path)


def test_it_trains_alike(vc: Cluster, tmp_path: Path) -> None:
    program = [path_of("own_loop"), *SETTINGS]
    ok(vc.run("node1", [*PYTHON, *program, str(tmp_path / "one")]))
    ways: list[tuple[Launch, list[str]]] = [
        (LAUNCHERS["srun"], PYTHON),
        (LAUNCHERS["openmpi5"], RUNNER),
        (horovodrun, PYTHON),
    ]
    for number, (launch, way) in enumerate(ways):
        done = ok(launch(vc, [1, 1], [*way, *program, str(tmp_path / str(number))]))
        assert "rank 1: 8 steps, 2 epochs, " in done.stdout
        assert losses(tmp_path / str(number)) == pytest.approx(losses(tmp_path / "one"), rel=1e-12)
