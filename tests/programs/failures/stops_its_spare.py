"""Rank 1 stops its spare process, once, and kills itself."""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist
from guarded import wait_for_spare

once = Path(sys.argv[1])
dist.init_process_group("gloo")
if dist.get_rank() == 1 and not once.exists():
    once.touch()
    wait_for_spare().send_signal(signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print(f"rank {dist.get_rank()} is done")
dist.destroy_process_group()
