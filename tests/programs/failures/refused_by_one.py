"""Rank 1 alone refuses what is marked as refused by all ranks."""

import torch.distributed as dist

from runner.base.errors import UsageError, raised_on_all_ranks

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    with raised_on_all_ranks():
        raise UsageError("there is no strategy theirs", fix="install its package")
dist.barrier()
