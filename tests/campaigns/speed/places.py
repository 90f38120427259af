"""Where things are measured: one host with 2 and 4 ranks and, where this machine can make one (root), two virtual hosts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from tests.cluster.launchers import openmpi5
from tests.cluster.virtual import cluster, missing
from tests.launching import ROOT, mpirun

PATIENCE = 1200.0  # seconds, for a command

Launch = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Place:
    """Where it is measured, and how a program is started there on all ranks."""

    title: str
    hosts: int
    launch: Launch


def places(stack: ExitStack) -> Iterator[Place]:
    """All places; ``stack`` ends the virtual hosts."""
    if problem := missing(slurm=False):
        print(f"no virtual hosts: {problem}", file=sys.stderr)
    else:
        vc = stack.enter_context(cluster(2))
        vc.timeout = PATIENCE
        # The virtual hosts share this machine's cores: one OpenMP thread each, as if each had its own.
        settings = ["env", "OMP_NUM_THREADS=1", f"PYTHONPATH={ROOT}"]
        yield Place("2 ranks, two virtual hosts", 2, lambda program: openmpi5(vc, [1, 1], [*settings, *program]))
    for ranks in (2, 4):
        yield Place(f"{ranks} ranks, one host", 1, partial(_on_one_host, ranks))


def _on_one_host(ranks: int, program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return mpirun(ranks, *program, cwd=ROOT, timeout=PATIENCE)
