"""Calls of the mpi4py backend to which rank 1 does not come, by each way in which rank 0 waits; the last error is not caught."""

import datetime
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LIMIT = datetime.timedelta(seconds=2)


def backward(group):
    """DDP's reducer, in C++, waits for a call of its own. The forward pass is done by both ranks."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
    loss = model(torch.ones(1, 2)).sum()
    return lambda _held=model: loss.backward()


def begin(group):
    return dist.all_reduce(torch.ones(4), group=group, async_op=True)


WAYS = {
    "call": lambda group: dist.all_reduce(torch.ones(4), group=group),
    "work": lambda group: begin(group).wait(),
    "future": lambda group: begin(group).get_future().wait(),
    "group": lambda _: dist.new_group([0, 1], timeout=LIMIT),
}


def limited():
    """A group with the limit. Both ranks have come when it is made, which counts, too."""
    dist.barrier()
    return dist.new_group(timeout=LIMIT)


dist.init_process_group("mpi4py")
DistributedDataParallel(torch.nn.Linear(2, 2))  # the first one imports much
groups = [limited() for _ in WAYS]
wait = backward(limited())
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(60)
for group, (how, way) in zip(groups, WAYS.items(), strict=True):
    try:
        way(group)
        print(f"{how}: continued", flush=True)
    except RuntimeError as error:
        print(f"{how}: {str(error).splitlines()[0]}", flush=True)
wait()
print("ddp: continued", flush=True)
