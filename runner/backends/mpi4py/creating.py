"""Create a group's communicator and backend."""

from __future__ import annotations

import functools
import json
import uuid
import warnings
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from runner.backends.mpi4py.backend import MPIBackend, open_groups
from runner.backends.mpi4py.engine import ProgressEngine
from runner.backends.mpi4py.group import MPIGroup, can_be_used
from runner.backends.mpi4py.members import Members, listed
from runner.backends.mpi4py.older_group import OlderGroup
from runner.backends.mpi4py.waiting import Cores
from runner.versions.torch_private import (
    DebugLevel,
    get_debug_level,
    has_devices,
    register_backend,
    takes_backend_in_python,
)

_TAGS = 1 << 15  # as many as every MPI has
_DECISION = "mpi4py decision"  # the key of what all members read: the members' ranks in MPI and the group's own name, or who is late
_NAMED = 256  # members that any but the first looks up one by one, at most


def create(options: Any, name: str, *, crowded: bool) -> MPIBackend | MPIGroup | OlderGroup:
    """The backend of a group, or the group itself; called on its members only. MPI must allow several threads.

    Args:
        name: the backend's name, as the program knows it.
        crowded: whether some host has more ranks than cores; the same on all ranks.

    Raises:
        DistBackendError: not all members called this within the group's time limit, or MPI makes no more groups.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout = options.timeout if isinstance(options.timeout, timedelta) else timedelta(seconds=options.timeout)
    mpi_ranks, own_name = _agreed(options.store, ranks, options.group_rank, timeout)
    try:
        comm = _communicator(mpi_ranks, str(options.group_id))
    finally:  # all have read these keys; a later group may use the same
        options.store.delete_key(_key(ranks[options.group_rank]))
        if options.group_rank == 0:
            options.store.delete_key(_DECISION)
    # torch gives a group that is made after destroy_process_group() the keys of the one before, which are still there.
    known = Members(dist.distributed_c10d.PrefixStore(own_name, options.store), ranks, options.group_rank)
    backend = MPIBackend(_engine(crowded), comm, known, timeout.total_seconds(), name, str(options.group_id))
    if not takes_backend_in_python():
        if get_debug_level() == DebugLevel.DETAIL and options.group_rank == 0:
            warnings.warn(
                f"TORCH_DISTRIBUTED_DEBUG=DETAIL does not compare the calls of backend mpi4py with torch {torch.__version__}; "
                "take --backend gloo, or torch 2.14",
                stacklevel=2,
            )
        return OlderGroup(options, backend)
    return MPIGroup(options, backend, options.process_group) if _is_alone(options.process_group, backend) else backend


def _communicator(mpi_ranks: list[int], group: str) -> MPI.Intracomm:
    """A communicator of its own for a group.

    Raises:
        DistBackendError: MPI makes no more; all members get this error.
    """
    world = MPI.COMM_WORLD
    members = world.group.Incl(mpi_ranks)
    try:
        return world.Create_group(members, zlib.crc32(group.encode()) % _TAGS)
    except MPI.Exception as error:
        reason = str(error).strip().splitlines()[-1]
        raise dist.DistBackendError(
            f"{MPI.get_vendor()[0]} makes no group of {len(mpi_ranks)} ranks, as one of them is in as many groups as it allows "
            f"(rank {world.rank} is in {open_groups()}): {reason}; destroy those that are done with, or use gloo"
        ) from None
    finally:
        members.Free()


@functools.cache
def _engine(crowded: bool) -> ProgressEngine:
    """The engine of this process: there is one, as ``crowded`` does not change."""
    return ProgressEngine(Cores(crowded=crowded))


def _is_alone(group: Any, backend: MPIBackend) -> bool:
    """Whether this is the group's only backend (not as in "cpu:mpi4py,cuda:nccl") and nothing else needs a C++ group."""
    if not can_be_used() or has_devices(group):
        return False
    register_backend(group, "cpu", backend)
    try:
        group.name()  # the name of the group's default backend
    except RuntimeError:
        return False  # the default is another backend, which is not registered yet
    return True


def _key(rank: int) -> str:
    return f"mpi4py {rank}"


def _agreed(store: Any, ranks: list[int], own: int, timeout: timedelta) -> tuple[list[int], str]:
    """The members' ranks in MPI, in the order of their ranks in the group, and a name that no other group has.

    Both are known when all members are there.

    Making a communicator has no time limit, so this waits for them. Either all members make the group or none: a member
    that has waited in vain decides so for all, unless it has been decided otherwise.

    Raises:
        DistBackendError: some members are late.
    """
    store.set(_key(ranks[own]), str(MPI.COMM_WORLD.rank))
    decision = _decision(store, ranks, own, timeout)
    decided = store.get(_DECISION) if decision is None else store.compare_set(_DECISION, "", json.dumps(decision))
    late, mpi_ranks, name = json.loads(decided)
    if late:
        raise dist.DistBackendError(
            f"rank {listed(late)} did not come to make a group of {len(ranks)} within {timeout.total_seconds():.0f} s"
        )
    return mpi_ranks or ranks, name


def _decision(store: Any, ranks: list[int], own: int, timeout: timedelta) -> tuple[list[int], list[int], str] | None:
    """This member's decision: the members that are late, or else all members' ranks in MPI and the group's name.

    None: another's holds.

    The first member collects the ranks, so that the store serves few requests of each. They are left out if they are the
    ranks in the job, as usual, so that the answers are short, too.
    """
    keys = [_key(rank) for rank in ranks]
    try:
        store.wait(keys if own == 0 else [_DECISION], timeout)
    except RuntimeError:
        known = ranks if own == 0 else ranks[:_NAMED]
        late = [rank for rank in known if not store.check([_key(rank)])]
        if late or own != 0:
            return late or ranks[:1], [], ""
    if own != 0:
        return None
    mpi_ranks = [int(value) for value in (store.multi_get(keys) if store.has_extended_api() else map(store.get, keys))]
    return [], mpi_ranks if mpi_ranks != ranks else [], uuid.uuid4().hex
