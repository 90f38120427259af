"""``init_process_group(rank=…)`` with other ranks than MPI's, on the mpi4py backend: all calls go by torch's.

mpirun -np 4 python -m runner tests/programs/collectives/ranks_in_another_order.py FOLDER
"""

import os
import sys
import warnings
from pathlib import Path

import newest_names  # noqa: F401  # used by its import: older releases get the names of 2.14
import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")
mpi_rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def same(found, wanted, what):
    if list(found) != list(wanted):
        sys.exit(f"MPI rank {mpi_rank}, rank {dist.get_rank()}: {what} gave {list(found)}, not {list(wanted)}")


def number(value):
    return torch.tensor([float(value)])


def use(members, group):
    """All kinds of calls in a group that this rank is in; the members are global ranks in the group's order."""
    rank, own = members.index(dist.get_rank()), float(dist.get_rank())
    tensor = number(own)
    dist.broadcast(tensor, group=group, group_src=1)
    same(tensor, [members[1]], "broadcast")
    joined = torch.empty(len(members))
    dist.all_gather_into_tensor(joined, number(own), group=group)
    same(joined, members, "all_gather_into_tensor")
    part = torch.empty(1)
    dist.reduce_scatter_tensor(part, torch.arange(float(len(members))), group=group)
    same(part, [rank * len(members)], "reduce_scatter_tensor")
    dist.reduce_scatter(part, [torch.full((1,), float(r)) for r in range(len(members))], group=group)
    same(part, [rank * len(members)], "reduce_scatter")
    mixed = torch.empty(len(members))
    dist.all_to_all_single(mixed, torch.full((len(members),), own), group=group)
    same(mixed, members, "all_to_all_single")
    tensor = number(own)
    dist.reduce(tensor, group=group, group_dst=0)
    same(tensor, [sum(members) if rank == 0 else own], "reduce")
    after, before = (rank + 1) % len(members), (rank - 1) % len(members)
    arrived = torch.empty(1)
    work = dist.isend(number(own), group=group, group_dst=after)
    dist.recv(arrived, group=group, group_src=before)
    work.wait()
    same(arrived, [members[before]], "send and recv")
    dist.monitored_barrier(group)


# One after the other over the same store: what the group before has left there counts no more.
for order in (lambda rank: size - 1 - rank, lambda rank: (rank + 1) % size, lambda rank: rank):
    dist.init_process_group("mpi4py", rank=order(mpi_rank), world_size=size)
    same([dist.get_rank()], [order(mpi_rank)], "init_process_group")
    use(list(range(size)), None)
    for members in (list(range(size - 1, -1, -2)), list(range(1, size)), list(range(0, size, 2))):
        group = dist.new_group(members)  # torch sorts them
        if dist.get_rank() in members:
            use(sorted(members), group)
    dist.destroy_process_group()

# By a file, which is a store of fewer words; each half of the ranks for itself; each rank for itself.
folder = Path(sys.argv[1])
dist.init_process_group("mpi4py", init_method=f"file://{folder}/all", rank=size - 1 - mpi_rank, world_size=size)
use(list(range(size)), None)
dist.destroy_process_group()
half = f"file://{folder}/half {mpi_rank % 2}"
dist.init_process_group("mpi4py", init_method=half, rank=mpi_rank // 2, world_size=size // 2)
use(list(range(size // 2)), None)
dist.destroy_process_group()
dist.init_process_group("mpi4py", store=dist.HashStore(), rank=0, world_size=1)
tensor = number(7)
dist.all_reduce(tensor)
same(tensor, [7], "all_reduce alone")
dist.destroy_process_group()
print(f"MPI rank {mpi_rank}: all right", flush=True)
