"""A rank comes late to a call of the mpi4py backend, makes another one, or has left: ``late_or_gone.py HOW``."""

import sys
import time
from datetime import timedelta

import newest_names  # noqa: F401  # used by its import: older releases get the names of 2.14
import torch
import torch.distributed as dist


def late(seconds: float, limit: float) -> None:
    """Rank 1 is so late for a call with this time limit."""
    dist.barrier()  # a rank may be slow to come here
    dist.set_timeout(timedelta(seconds=limit))
    if rank == 1:
        time.sleep(seconds)


def all_calls_fail() -> None:
    """When one call of a group has failed, all others do: those that wait, those under way, and those that come."""
    late(6, limit=2)
    if rank == 1:
        return
    first = dist.all_reduce(torch.ones(4096), async_op=True)
    future = first.get_future()
    for wait in (lambda: dist.all_reduce(torch.ones(4)), future.wait, first.wait, dist.barrier):
        try:
            wait()
        except RuntimeError as error:
            print("Timed out waiting 2000ms for rank 1" in str(error), flush=True)
    print(first.is_completed(), first.is_success(), flush=True)


def destroys() -> None:
    """The error is caught, and the group destroyed while the call is open in MPI."""
    late(4, limit=1)
    try:
        dist.all_reduce(torch.ones(4), async_op=True).wait()
    except dist.DistBackendError:
        dist.destroy_process_group()
        print("continued", flush=True)


def blocking() -> None:
    """Rank 1 comes to a blocking call of MPI after rank 0 has given it up."""
    late(4, limit=2)
    try:
        dist.all_reduce(torch.ones(1 << 20))
    except dist.DistBackendError as error:
        print(str(error)[:33], flush=True)


def gone(destroys_its_group: bool = False) -> None:
    """Rank 1 ends, or leaves its group, before a call for which the others wait."""
    dist.all_reduce(torch.ones(4))
    if rank != 1:
        dist.all_reduce(torch.ones(4))
    elif destroys_its_group:
        dist.destroy_process_group()
        time.sleep(60)


def done_before() -> None:
    """A rank whose part of a gather is done ends, long before the last one has come; all have left an earlier group before."""
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    dist.init_process_group("mpi4py")  # torch gives it the same name and keys in the store
    for _ in range(3):  # more calls than in the earlier group
        dist.all_reduce(torch.ones(2))
    if rank == 2:
        time.sleep(8)
    dist.gather(torch.full((2,), float(rank)), [torch.empty(2) for _ in range(3)] if rank == 0 else None)
    print("gathered", flush=True)


def another_call() -> None:
    """Rank 1 broadcasts where rank 0 reduces."""
    if rank == 1:
        dist.broadcast(torch.ones(4), 1)
    else:
        dist.all_reduce(torch.ones(4))


dist.init_process_group("mpi4py")
rank = dist.get_rank()
{
    "all-calls-fail": all_calls_fail,
    "destroys": destroys,
    "blocking": blocking,
    "gone": gone,
    "gone-from-its-group": lambda: gone(destroys_its_group=True),
    "done-before": done_before,
    "another-call": another_call,
}[sys.argv[1]]()
