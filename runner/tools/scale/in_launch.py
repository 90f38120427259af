"""Measured runs within one launch: on the first n ranks a job of n ranks is started, as torchrun would start it; the others wait.

The first rank of each host starts the processes of all of the host's ranks, each with the variables and cores of its rank, so that
they share one import of torch. Where a rank has a control group of its own it starts its process itself. Ranks of this tool wait in a
broadcast or for a process, and so use no core. MPI can be begun once per rank only: what is measured here communicates without it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

from runner.job import Job
from runner.measuring.measured_run import StepsSeen, StepsWanted, read_measured

# What launchers say to the ranks of this tool, and what is told to those of the measured job instead. A rank has as many threads as
# in the whole launch, as it would have on more hosts.
_LAUNCHERS = re.compile(
    r"(OMPI_|PMIX_|PMI_|PRTE_|MPI_LOCAL|HYDRA_|I_MPI_HYDRA|SLURM_(PROCID|LOCALID|NTASKS|STEP_)|TORCHELASTIC_|HOROVOD_)"
)
_OURS = "runner: "  # begins a line of the runner's own
_LOOK = 0.3  # seconds in which is seen how busy a host is
_LOOKS = 0.05  # seconds between two looks at processes
_AFTER_FAILURE = 30.0  # seconds
_ENDING = 10.0  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A measured run: what its ranks have seen, or why there is nothing; and how many cores of a host others used before it."""

    ranks: tuple[StepsSeen, ...] = ()
    problem: str = ""
    others: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What a process of a rank is to have."""

    environment: dict[str, str]
    cores: frozenset[int]
    group: str  # its control groups, as a text


class JobsInTurn:
    """Of this tool, in which runs of several sizes take turns."""

    def __init__(self, job: Job) -> None:
        """Collective."""
        self._job = job
        self._order = [rank for host in job.topology.hosts for rank in host.ranks]  # whole hosts first
        self._places: list[Any] = [None] * job.size
        dist.all_gather_object(self._places, _own_place(job))
        here = [rank for rank in self._order if self._host(rank) == self._host(job.rank)]
        if len({self._places[rank].group for rank in here}) > 1:
            self._started = [job.rank]
        else:
            self._started = here if job.rank == here[0] else []

    def _host(self, rank: int) -> int:
        return self._job.topology.host_index(rank)

    def hosts(self, size: int) -> int:
        """On how many hosts the first so many ranks are."""
        return len({self._host(rank) for rank in self._order[:size]})

    def run(self, size: int, request: StepsWanted, words: Sequence[str], seconds: float) -> Ran | None:
        """Run the command on the first ranks. Collective. Returns what was seen on rank 0, None elsewhere.

        Args:
            words: the runner's options, the target and its arguments.
            seconds: after which it is ended.
        """
        started = [rank for rank in self._started if rank in self._order[:size]]
        others = psutil.cpu_percent(_LOOK) / 100 * (os.cpu_count() or 1) if started else 0.0
        port = [_free_port() if self._job.rank == self._order[0] else 0]
        dist.broadcast_object_list(port, src=self._order[0])
        ranks, problem = self._run_here(started, size, port[0], request, words, seconds) if started else ((), "")
        gathered: list[Any] = [None] * self._job.size
        dist.all_gather_object(gathered, Ran(ranks=ranks, problem=problem, others=others))
        if self._job.rank != 0:
            return None
        return Ran(
            ranks=tuple(sorted((one for ran in gathered for one in ran.ranks), key=lambda one: one.rank)),
            problem=next((gathered[rank].problem for rank in self._order if gathered[rank].problem), ""),
            others=max(ran.others for ran in gathered),
        )

    def _run_here(
        self, started: Sequence[int], size: int, port: int, request: StepsWanted, words: Sequence[str], seconds: float
    ) -> tuple[tuple[StepsSeen, ...], str]:
        """Start the processes of these ranks, and wait for them. Returns what they have seen, and why one has failed."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="runner-scale-"))
            request.write(folder)
        except OSError as error:
            return (), f"no temporary folder: {error}"
        command = [sys.executable, "-m", "runner", "--launcher=env", f"--measure={folder}", *words]
        logs = [folder / f"output-{rank}" for rank in started]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in zip(started, logs, strict=True):
                processes.append(_start(command, self._places[rank].cores, self._variables(rank, size, port), log))
            have_ended = _have_ended(processes, seconds)
            failed = [number for number, process in enumerate(processes) if process.returncode]
            if failed:
                return (), _cause([logs[number] for number in failed], processes[failed[0]].returncode)
            return (
                (tuple(read_measured(folder)), "") if have_ended else ((), f"it has not ended within {seconds:.0f} s")
            )
        except (OSError, ValueError) as error:  # on one host: the others are in a collective
            return (), f"its processes cannot be started or read: {error}"
        finally:
            _end(processes)
            shutil.rmtree(folder, ignore_errors=True)

    def _variables(self, rank: int, size: int, port: int) -> dict[str, str]:
        """Those of the rank of this tool, with torchrun's of the measured job."""
        here = [one for one in self._order[:size] if self._host(one) == self._host(rank)]
        environment: Mapping[str, str] = self._places[rank].environment
        return {
            **{name: value for name, value in environment.items() if not _LAUNCHERS.match(name)},
            "RANK": str(self._order.index(rank)),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(here.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(here)),
            "GROUP_RANK": str(self._host(rank)),
            "MASTER_ADDR": self._job.endpoint.host,
            "MASTER_PORT": str(port),
        }


def _own_place(job: Job) -> _Place:
    group = Path("/proc/self/cgroup")
    return _Place(
        environment={**job.context.environment, "OMP_NUM_THREADS": str(job.placement.threads)},
        cores=frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(),
        group=group.read_text() if group.exists() else "",
    )


def _start(
    command: Sequence[str], cores: frozenset[int], environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a process on these cores: it has those of the thread that starts it."""
    own = os.sched_getaffinity(0) if cores else set()
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        with log.open("wb") as output:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
    finally:
        if cores:
            os.sched_setaffinity(0, own)


def _have_ended(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Wait for them. Once one has failed the others are soon to end, too."""
    end = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            end = min(end, time.monotonic() + _AFTER_FAILURE)
        if time.monotonic() > end:
            return False
        time.sleep(_LOOKS)
    return True


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Those that have not ended by themselves."""
    left = [process for process in processes if process.poll() is None]
    for process in left:
        process.terminate()
    if not _have_ended(left, _ENDING):
        for process in left:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _cause(logs: Sequence[Path], code: int) -> str:
    """In a line: the first that the runner says, after the program's own last word where the runner knows no more than an exit code."""
    said: list[str] = []
    for log in logs:
        said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()] or said
        first = next((place for place, line in enumerate(said) if line.startswith(_OURS)), None)
        if first is not None:
            ours = said[first].removeprefix(_OURS)
            return f"{said[first - 1].strip()} ({ours})" if first and "ended with code" in ours else ours
    return said[-1].strip() if said else f"no word, exit code {code}"
