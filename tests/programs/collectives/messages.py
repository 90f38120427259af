"""Messages of the mpi4py backend: from anybody, thousands at once, and one whose sender makes no call of MPI meanwhile; a late one."""

import datetime

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
rank, size = dist.get_rank(), dist.get_world_size()

# recv() returns the sender, and so does the work of irecv().
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

# Each with a tag of its own, waited for in the order of their numbers.
count, after, before = 2000, (rank + 1) % size, (rank - 1) % size
boxes = [torch.zeros(4) for _ in range(count)]
works = [dist.irecv(box, before, tag=number) for number, box in enumerate(boxes)]
works += [dist.isend(torch.full((4,), float(number)), after, tag=number) for number in reversed(range(count))]
for work in works:
    work.wait()
assert all(bool((box == number).all()) for number, box in enumerate(boxes))
assert all(work.is_completed() for work in works)
print(f"rank {rank}: {len(works)} messages", flush=True)

# A large one, whose sender waits for the answer in the store.
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    work = dist.isend(torch.full((1 << 22,), 7.0), 1)
    store.wait(["answer"], datetime.timedelta(seconds=20))
    work.wait()
    print("rank 0: answered", flush=True)
elif rank == 1:
    box = torch.empty(1 << 22)
    dist.recv(box, 0)
    assert bool((box == 7).all())
    store.set("answer", "")
    print("rank 1: received", flush=True)

# A receive that has been given up takes no message from the next one.
dist.barrier()  # on a busy machine one rank may come seconds after another
hasty = dist.new_group(timeout=datetime.timedelta(seconds=4))
if rank == 0:
    failed = ""
    try:
        dist.recv(torch.empty(1), 1, group=hasty)
    except RuntimeError as error:
        failed = str(error)
    assert "Timed out waiting 4000ms for rank 1" in failed, failed
    store.set("given up", "")
    box = torch.empty(1)
    dist.recv(box, 1, group=hasty)
    print(f"rank 0: {box.item()} at the second try", flush=True)
elif rank == 1:
    store.wait(["given up"])
    dist.send(torch.full((1,), 5.0), 0, group=hasty)
dist.destroy_process_group()
