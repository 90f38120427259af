"""One allreduce over gloo, by torchrun's variables: the least that a torchrun script does."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}", flush=True)
dist.destroy_process_group()
