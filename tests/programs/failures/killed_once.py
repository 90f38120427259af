"""Ten steps by DDP, a checkpoint after each; the last rank is killed once, after the fifth. Written for torchrun."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder = Path(sys.argv[1])
saved, killed, went_on = folder / "saved.pt", folder / "killed", folder / "went-on"
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 4))
first = 0
if saved.exists():
    content = torch.load(saved)
    model.module.load_state_dict(content["model"])
    first = content["step"]
for step in range(first, 10):
    model(torch.ones(2, 4)).sum().backward()
    if killed.exists() and not went_on.exists() and rank == 0:
        went_on.write_text(str(time.time()))
    if rank == 0:
        temporary = saved.with_suffix(".new")
        torch.save({"model": model.module.state_dict(), "step": step + 1}, temporary)
        temporary.rename(saved)
    dist.barrier()
    if step == 4 and rank == dist.get_world_size() - 1 and not killed.exists():
        time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)  # as if it had trained for a while
        killed.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
