"""Rank 1 stops its spare process, once, and kills itself."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import torch.distributed as dist

once = Path(sys.argv[1])
dist.init_process_group("gloo")
if dist.get_rank() == 1 and not once.exists():
    once.touch()
    guard = psutil.Process(os.getppid())
    while len(children := guard.children()) < 3:  # this one, the sweeper and, last, the spare one
        time.sleep(0.1)
    max(children, key=psutil.Process.create_time).send_signal(signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print(f"rank {dist.get_rank()} is done")
dist.destroy_process_group()
