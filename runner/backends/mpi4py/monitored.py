"""The monitored barrier: each rank sends a message to rank 0, so that rank 0 can name the ranks that are missing."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist
from mpi4py import MPI

from runner.backends.mpi4py.waiting import Backoff, Cores

_TAGS = 1 << 12  # the highest ones that the MPI has are the barriers'; a group's other messages have those below
_HEAD_START = 1.0  # seconds by which rank 0 may fail a barrier before the others do
_NOTHING = [bytearray(), MPI.BYTE]


def highest_tag_of_messages() -> int:
    """The highest tag of a group's messages: what the MPI has (at least 32767), less the tags of monitored barriers."""
    return int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0) - _TAGS  # always set on this communicator


class MonitoredBarrier:
    """A group's monitored barrier."""

    def __init__(self, comm: MPI.Intracomm, cores: Cores) -> None:
        self._comm, self._cores, self._made = comm, cores, 0
        self._first_tag = highest_tag_of_messages() + 1

    def __call__(self, limit: float, *, all_ranks: bool) -> None:
        """
        Args:
            limit: seconds.
            all_ranks: rank 0 waits for all ranks, and names all missing ones, not only the first.

        Raises:
            DistBackendError: a rank is missing.
        """
        self._made += 1
        tag, rank = self._first_tag + self._made % _TAGS, self._comm.rank
        if rank == 0:
            self._as_first(limit, all_ranks, tag)
            return
        self._comm.Isend(_NOTHING, 0, tag).Free()
        if not self._is_done_within(self._comm.Irecv(_NOTHING, 0, tag).Test, limit + _HEAD_START):
            raise dist.DistBackendError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: rank 0 did not say within {limit:g} s that all are there"
            )

    def _as_first(self, limit: float, all_ranks: bool, tag: int) -> None:
        deadline, missing = time.monotonic() + limit, []
        arrivals = {rank: self._comm.Irecv(_NOTHING, rank, tag) for rank in range(1, self._comm.size)}
        for rank, arrival in arrivals.items():
            if not self._is_done_within(arrival.Test, deadline - time.monotonic()):
                arrival.Cancel()
                missing.append(rank)
                if not all_ranks:
                    break
        if missing:
            over = "Rank 0 timed out in monitoredBarrier: " if limit == 0 else ""
            who = f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            raise dist.DistBackendError(f"{over}{who} failed to pass monitoredBarrier within {limit:g} s")
        for rank in arrivals:
            self._comm.Isend(_NOTHING, rank, tag).Free()

    def _is_done_within(self, done: Callable[[], bool], limit: float) -> bool:
        """Whether ``done`` returns True within ``limit`` seconds."""
        backoff = Backoff(self._cores.own())
        while not done():
            if backoff.pause() > limit:
                return False
        return True
