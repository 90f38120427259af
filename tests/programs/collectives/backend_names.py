"""Makes a group by each backend's name, one after the other, and prints which backend it got; "none" stands for no name."""

import sys

import torch
import torch.distributed as dist

for name in sys.argv[1:]:
    dist.init_process_group(**{} if name == "none" else {"backend": name})
    total = torch.ones(1)
    dist.all_reduce(total)
    pair = torch.ones(1)
    dist.all_reduce(pair, group=dist.new_group())
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    found = type(backend).__name__
    if found == "MPIBackend":  # what torch 2.15 asks for itself
        assert backend.options.global_ranks_in_group == [*range(dist.get_world_size())]
    print(f"rank {dist.get_rank()}: {found} {pair.item()}", flush=True)
    assert total.item() == pair.item()
    dist.destroy_process_group()
