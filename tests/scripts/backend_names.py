import sys

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
total = torch.ones(1)
dist.all_reduce(total)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
ranks = backend.options.global_ranks_in_group  # what torch 2.15 asks for itself
print(f"rank {dist.get_rank()}: {backend.getBackendName()} {total.item()} {ranks}", flush=True)
dist.destroy_process_group()
