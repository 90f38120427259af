"""Time all_reduces of tensors on a device over two ranks: mpirun -np 2 python -m runner --device cpu …/copies.py cuda

The ranks share the device, which NCCL refuses. Rank 0 prints a line of JSON: bytes → seconds, the fastest of ten.
"""

import json
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
found = {}
for size in (1 << 16, 1 << 20, 1 << 26):
    tensor = torch.ones(size // 4, device=sys.argv[1])
    times = []
    for _ in range(11):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        tensor[0].item()  # waits for the device
        times.append(time.perf_counter() - start)
    found[size] = min(times[1:])
if dist.get_rank() == 0:
    print(json.dumps({"seconds": found}), flush=True)
dist.destroy_process_group()
