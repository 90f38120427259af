"""Messages from anybody: recv() returns the sender, and so does the work of irecv()."""

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
rank, size = dist.get_rank(), dist.get_world_size()
if rank == 0:
    senders = []
    for number in range(2 * (size - 1)):
        box = torch.zeros(3)
        if number % 2:
            senders.append(dist.recv(box))
        else:
            work = dist.irecv(box)
            work.wait()
            senders.append(work._source_rank())
        assert bool((box == senders[-1]).all())
    print("from", sorted(senders), flush=True)
else:
    for _ in range(2):
        dist.send(torch.full((3,), float(rank)), 0)
dist.destroy_process_group()
