"""Monitored barriers to which ranks 1 and 2 do not come: rank 0 names the first, then all; the last error is not caught."""

import time
from datetime import timedelta

import newest_names  # noqa: F401  # used by its import: older releases get the names of 2.14
import torch.distributed as dist

dist.init_process_group("mpi4py")
dist.monitored_barrier()
first, second = dist.new_group(), dist.new_group()
if dist.get_rank() in (1, 2):
    time.sleep(60)
try:
    dist.monitored_barrier(first, timeout=timedelta(seconds=1))
except RuntimeError as error:
    print(f"rank {dist.get_rank()}: {error}", flush=True)
# Rank 3 comes a second later than rank 0, as its first wait is longer.
dist.monitored_barrier(second, timeout=timedelta(seconds=4), wait_all_ranks=True)
