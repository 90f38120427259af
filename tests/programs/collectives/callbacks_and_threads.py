"""Callbacks, threads and groups' ends on the mpi4py backend: the order of calls and their time limits.

mpirun -np 2 python -m runner tests/programs/collectives/callbacks_and_threads.py
"""

import datetime
import sys
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py", timeout=datetime.timedelta(seconds=5))
rank = dist.get_rank()
sys.setswitchinterval(1.0 if rank == 0 else 0.005)  # rank 0's caller comes before its group's thread, rank 1's after

# A call with a callback that asks for another, then one of another thread: in this order on both ranks.
for step in range(20):
    first, second, asked_for = (torch.full((4,), value) for value in (1.0, 10.0, 100.0))
    first_is_asked, works = threading.Event(), []

    def ask_for_the_second(event=first_is_asked, tensor=second, works=works):
        event.wait()
        works.append(dist.all_reduce(tensor, async_op=True))

    def ask_in_a_callback(_, tensor=asked_for):
        time.sleep(0.005)
        return dist.all_reduce(tensor, async_op=True)

    thread = threading.Thread(target=ask_for_the_second)
    thread.start()
    work = dist.all_reduce(first, async_op=True)
    follow = work.get_future().then(ask_in_a_callback)
    first_is_asked.set()
    if rank == 1:
        time.sleep(0.05)
    work.wait()
    follow.wait().wait()
    thread.join()
    works[0].wait()
    found = [tensor[0].item() for tensor in (first, second, asked_for)]
    if found != [2.0, 20.0, 200.0]:
        sys.exit(f"rank {rank}: step {step} gave {found}")

# A callback that takes longer than the group's limit: the call itself was in time.
work = dist.all_reduce(torch.ones(4), async_op=True)
follow = work.get_future().then(lambda future: (time.sleep(6), future.value())[1])
work.wait()
follow.wait()
dist.all_reduce(torch.ones(4))

# Tensors made in inference mode, written by whatever thread ends the call.
with torch.inference_mode():
    parts, total = [torch.empty(4) for _ in range(2)], torch.ones(4, dtype=torch.bfloat16)
    works = [dist.all_gather(parts, torch.ones(4), async_op=True), dist.all_reduce(total, async_op=True)]
    for work in works:
        work.get_future().wait()
if parts[1].sum() != 4 or total.sum() != 8:
    sys.exit(f"rank {rank}: in inference mode came {parts[1]} and {total}")

# A wait that is given up, of a call that continues.
tensor, given_up = torch.ones(4), dist.new_group(backend="gloo")
if rank == 1:
    dist.barrier(given_up)
work = dist.all_reduce(tensor, async_op=True)
if rank == 0:
    try:
        work.wait(datetime.timedelta(seconds=1))
        sys.exit("a wait of 1 s took longer")
    except dist.DistBackendError as error:
        if "all_reduce: Timed out waiting 1000ms for rank 1" not in str(error):
            raise
    dist.barrier(given_up)
work.wait()
if not (work.is_completed() and work.is_success()) or tensor[0] != 2:
    sys.exit(f"rank {rank}: a call that was waited for twice gave {tensor[0]:g}")

# Groups that are destroyed while a thread is in one of their calls: they end once that is done. (Which thread continues first
# then is nobody's promise.)
for _ in range(20):
    group = dist.new_group(timeout=datetime.timedelta(seconds=20))
    tensor, works = torch.ones(4), []

    def wait_in_a_thread(group=group, tensor=tensor, works=works):
        works.append(dist.all_reduce(tensor, group=group, async_op=True))
        works[0].wait()

    if rank == 0:
        thread = threading.Thread(target=wait_in_a_thread)
        thread.start()
        while not works:
            time.sleep(0.001)
        dist.destroy_process_group(group)
        if not works[0].get_future().done():
            sys.exit("a group has ended before its call")
        thread.join()
    else:
        time.sleep(0.02)
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
    if tensor[0] != 2:
        sys.exit(f"rank {rank}: the sum was {tensor[0]:g}")
print(f"rank {rank}: {tensor[0]:g}", flush=True)
dist.destroy_process_group()
