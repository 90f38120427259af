import sys

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
total = torch.ones(1)
dist.all_reduce(total)
name = dist.group.WORLD._get_backend(torch.device("cpu")).getBackendName()
print(f"rank {dist.get_rank()}: {name} {total.item()}", flush=True)
dist.destroy_process_group()
