"""Which memory MPI gets of tensors that are on a GPU, by the MPI's vendor. Stand-ins: the device's tensors, and the calls.

mpirun -np 1 python tests/programs/collectives/reduces_gpu_memory.py VENDOR
"""

import sys

import torch
from mpi4py import MPI

from runner.backends.mpi4py import buffers, collectives
from runner.backends.mpi4py.types import reduction_of
from runner.rendezvous.methods import mpi_library


class OnDevice(torch.Tensor):
    is_cpu = False


mpi_library._accepts_gpu_memory = lambda _: True  # this MPI takes GPU memory
MPI.get_vendor = lambda: (sys.argv[1], (0, 0, 0))
empty = torch.empty


pinned = []  # kept, so that no other tensor gets their addresses


def without_a_gpu(*arguments, pin_memory=False, **named):
    made = empty(*arguments, **named)
    if pin_memory:
        pinned.append(made)
        return made
    return made.as_subclass(OnDevice)


torch.empty = without_a_gpu
buffers._memory = lambda tensor: tensor


class Recording:
    """A communicator of one rank, which prints a call and where its data are."""

    rank, size = 0, 2

    def __getattr__(self, call):
        def record(*arguments):
            data = {one[0].data_ptr() for one in arguments if isinstance(one, list) and torch.is_tensor(one[0])}
            places = {"host" if address in {one.data_ptr() for one in pinned} else "device" for address in data}
            print(call, *places)
            return call

        return record


class Never:
    def is_faster(self, *_):
        return False


def tensor():
    return torch.ones(4).as_subclass(OnDevice)


comm, total = Recording(), reduction_of(torch.distributed.ReduceOp.SUM, torch.float32, 2)
result = tensor()
for steps in (
    collectives.allreduce(comm, Never(), [result], [total]),
    collectives.reduce(comm, tensor(), total, 0),
    collectives.reduce_scatter(comm, [tensor()], [[tensor(), tensor()[:2]]], [total]),
    collectives.reduce_scatter_single(comm, [tensor()[:2]], [tensor()], [total]),
    collectives.broadcast(comm, [tensor()], 0),
    collectives.all_gather_single(comm, Never(), [tensor()], [tensor()[:2]]),
):
    list(steps)
assert result.tolist() == [1, 1, 1, 1]  # copied back
print("all right")
