"""One rank ends before the others have done their last step: ``ends_early.py RANK os._exit|return|barrier``."""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

early, how = int(sys.argv[1]), sys.argv[2]


def main() -> None:
    dist.init_process_group("gloo")
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()  # as progress bars have
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    is_early = dist.get_rank() == early
    for _ in range(3 if is_early and how != "barrier" else 4):
        model(torch.ones(2, 4)).sum().backward()
    if how == "os._exit" and is_early:
        os._exit(0)
    if how == "barrier" and not is_early:
        dist.barrier()


main()
