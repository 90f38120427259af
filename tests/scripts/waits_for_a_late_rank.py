"""A call of the mpi4py backend to which rank 1 does not come, by the way in which rank 0 waits for it: ``… HOW``."""

import datetime
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LIMIT = datetime.timedelta(seconds=2)


def begin(**options):
    return dist.all_reduce(torch.ones(4), **options)


def backward():
    """DDP's reducer, in C++, waits for a call of its own. The forward pass is done by both ranks."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    loss = model(torch.ones(1, 2)).sum()
    return lambda _held=model: loss.backward()


dist.init_process_group("mpi4py", timeout=LIMIT)
how = sys.argv[1]
wait = {
    "call": lambda: begin,
    "work": lambda: lambda: begin(async_op=True).wait(),
    "future": lambda: lambda: begin(async_op=True).get_future().wait(),
    "ddp": backward,
    "group": lambda: lambda: dist.new_group([0, 1], timeout=LIMIT),
}[how]()
if dist.get_rank() == 1:
    time.sleep(60)
wait()
print("went on", flush=True)
