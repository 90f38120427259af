"""Thousands of messages under way at once, each with a tag of its own, waited for in the order of their numbers."""

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
rank, count = dist.get_rank(), 2000
boxes = [torch.zeros(4) for _ in range(count)]
works = [dist.irecv(box, 1 - rank, tag=number) for number, box in enumerate(boxes)]
works += [dist.isend(torch.full((4,), float(number)), 1 - rank, tag=number) for number in reversed(range(count))]
for work in works:
    work.wait()
assert all(bool((box == number).all()) for number, box in enumerate(boxes))
assert all(work.is_completed() for work in works)
print(f"rank {rank}: {len(works)} messages", flush=True)
dist.destroy_process_group()
