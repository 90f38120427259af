"""When one call of a group has failed, all others do: those that wait, those under way, and those that come."""

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
dist.barrier()  # a rank may be slow to come here
dist.set_timeout(datetime.timedelta(seconds=2))
if dist.get_rank() == 1:
    time.sleep(6)
else:
    first = dist.all_reduce(torch.ones(4096), async_op=True)
    future = first.get_future()
    for wait in (lambda: dist.all_reduce(torch.ones(4)), future.wait, first.wait, dist.barrier):
        try:
            wait()
        except RuntimeError as error:
            print("Timed out waiting 2000ms for rank 1" in str(error), flush=True)
    print(first.is_completed(), first.is_success(), flush=True)
