"""Create a group's communicator and backend."""

from __future__ import annotations

import functools
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from runner.comm.mpi.backend import MPIBackend
from runner.comm.mpi.engine import Engine
from runner.comm.mpi.group import MPIGroup, can_be_used
from runner.comm.mpi.members import Members
from runner.comm.mpi.monitored import TAGS
from runner.comm.mpi.waiting import Cores


def create(options: Any, name: str, *, crowded: bool) -> MPIBackend | MPIGroup:
    """The backend of a group, or the group itself; called on its members only. MPI must allow several threads.

    Args:
        name: the backend's name, as the program knows it.
        crowded: whether some host has more ranks than cores; the same on all ranks.

    Raises:
        DistBackendError: not all members called this within the group's time limit.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout = options.timeout.total_seconds() if isinstance(options.timeout, timedelta) else float(options.timeout)
    world = MPI.COMM_WORLD
    own_key = _key(ranks[options.group_rank])
    options.store.set(own_key, str(world.rank))
    mpi_ranks = _mpi_ranks(options.store, ranks, timeout)
    members = world.group.Incl(mpi_ranks)
    comm = world.Create_group(members, zlib.crc32(str(options.group_id).encode()) % TAGS)
    members.Free()
    options.store.delete_key(own_key)  # all have read it; a later group may use the same key
    known = Members(options.store, ranks, options.group_rank)
    backend = MPIBackend(_engine(crowded), comm, known, timeout, name, str(options.group_id))
    return MPIGroup(options, backend, options.process_group) if _is_alone(options.process_group, backend) else backend


@functools.cache
def _engine(crowded: bool) -> Engine:
    """The engine of this process: there is one, as ``crowded`` does not change."""
    return Engine(Cores(crowded=crowded))


def _is_alone(group: Any, backend: MPIBackend) -> bool:
    """Whether this is the group's only backend (not as in "cpu:mpi4py,cuda:nccl") and nothing else needs a C++ group."""
    if not can_be_used() or group._device_types:
        return False
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    try:
        group.name()  # the name of the group's default backend
    except RuntimeError:
        return False  # the default is another backend, which is not registered yet
    return True


def _key(rank: int) -> str:
    return f"mpi4py {rank}"


def _mpi_ranks(store: Any, ranks: list[int], timeout: float) -> list[int]:
    """The members' ranks in MPI, in the order of their ranks in the group; the two numberings may differ.

    Waits until all members have stored theirs, as making a communicator has no time limit.

    Raises:
        DistBackendError: some members are late.
    """
    keys = [_key(rank) for rank in ranks]
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        late = ", ".join(str(rank) for rank in ranks if not store.check([_key(rank)]))
        raise dist.DistBackendError(
            f"rank {late} did not come to make a group of {len(ranks)} within {timeout:.0f} s"
        ) from None
    return [int(value) for value in (store.multi_get(keys) if store.has_extended_api() else map(store.get, keys))]
