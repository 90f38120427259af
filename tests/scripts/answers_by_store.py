"""A large message whose sender waits for the answer in the store, and makes no call of MPI meanwhile."""

import datetime

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 0:
    work = dist.isend(torch.full((1 << 22,), 7.0), 1)
    store.wait(["answer"], datetime.timedelta(seconds=20))
    work.wait()
    print("rank 0: answered", flush=True)
else:
    box = torch.empty(1 << 22)
    dist.recv(box, 0)
    assert bool((box == 7).all())
    store.set("answer", "")
    print("rank 1: received", flush=True)
dist.destroy_process_group()
