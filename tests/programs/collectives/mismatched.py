"""Calls of the mpi4py backend whose tensors do not fit together: refused before anything is sent, or by the receiver.

mpirun -np 3 python -m runner tests/programs/collectives/mismatched.py
"""

import sys
import warnings
from functools import partial

import newest_names  # noqa: F401  # used by its import: older releases get the names of 2.14
import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")
dist.init_process_group("mpi4py")
world, others = dist.group.WORLD, dist.new_group([2, 0])


def refused(what, call, *said):
    """The call raises at once, and its message has what is said."""
    try:
        call()
    except (ValueError, TypeError, RuntimeError) as error:  # a future hands errors on as the last
        if not all(str(word) in str(error) for word in said):
            sys.exit(f"{what}: {error}, without {said}")
    else:
        sys.exit(f"{what} was not refused")


def full(size, dtype=torch.float32, device="cpu"):
    return torch.full((size,), 2.0, device=device).to(dtype)


def refuses_all(group):
    """Each rank by itself: a call that sent something first would disturb the collectives after it."""
    ranks, own = group.size(), group.rank()
    five, many, one = full(5), full(5 * ranks), dist.get_rank()
    for other in (full(4), full(6), full(5, torch.float64), full(5, torch.bfloat16), full(5, device="meta")):
        size, dtype, device = other.numel(), other.dtype, other.device
        whole = full(size * ranks, dtype, device)
        for name, call in {
            "all_gather_single": partial(dist.all_gather_single, whole, five, group),
            "all_gather_single, input": partial(dist.all_gather_single, many, other, group),
            "reduce_scatter_single": partial(dist.reduce_scatter_single, five, whole, group=group),
            "reduce_scatter_single, output": partial(dist.reduce_scatter_single, other, many, group=group),
        }.items():
            refused(name, call, f"{dtype} on {device}", "which is not")
        for name, call in {
            "all_gather": partial(dist.all_gather, [other] * ranks, five, group),
            "gather": partial(dist.gather, five, [other] * ranks, one, group),
            "scatter": partial(dist.scatter, five, [other] * ranks, one, group),
            "reduce_scatter": partial(dist.reduce_scatter, five, [other] * ranks, group=group),
            "all_to_all": partial(dist.all_to_all, [other] * ranks, [five] * ranks, group),
            "all_to_all, own part": partial(
                dist.all_to_all, [five] * own + [other] + [five] * (ranks - own - 1), [five] * ranks, group
            ),
            "all_to_all_single": partial(dist.all_to_all_single, whole, many, group=group),
            "all_to_all_single, splits": partial(
                dist.all_to_all_single, whole, many, [size] * ranks, [5] * ranks, group
            ),
        }.items():
            refused(name, call, *(() if size == 5 else (size, 5)))
    uneven = [full(5 + (rank != own)) for rank in range(ranks)]  # of which the other ranks cannot know
    refused("gather of uneven parts", partial(dist.gather, five, uneven, one, group), 6, 5)
    refused("scatter of uneven parts", partial(dist.scatter, five, uneven, one, group), 6, 5)
    for number in (ranks - 1, ranks + 1):
        parts = [full(5) for _ in range(number)]
        for name, call in {
            "all_gather": partial(dist.all_gather, parts, five, group),
            "gather": partial(dist.gather, five, parts, one, group),
            "scatter": partial(dist.scatter, five, parts, one, group),
            "reduce_scatter": partial(dist.reduce_scatter, five, parts, group=group),
            "all_to_all, inputs": partial(dist.all_to_all, [full(5)] * ranks, parts, group),
            "all_to_all, outputs": partial(dist.all_to_all, parts, [full(5)] * ranks, group),
            "all_to_all_single, splits": partial(dist.all_to_all_single, many, many, [5] * number, [5] * ranks, group),
        }.items():
            refused(f"{name} of {number}", call, ranks)
    splits = [5] * ranks
    refused(
        "splits that are too few", partial(dist.all_to_all_single, many, many, splits, [4] * ranks, group), 4, 5 * ranks
    )
    negative = [-5, 5 * ranks + 5, *[0] * (ranks - 2)]
    refused("negative splits", partial(dist.all_to_all_single, many, many, negative, negative, group), -5)
    refused("rows that cannot be shared", partial(dist.all_to_all_single, full(5 * ranks + 1), many, group=group))
    sparse = torch.eye(ranks).to_sparse()
    for name, call in {
        "broadcast": partial(dist.broadcast, sparse, one, group),
        "reduce": partial(dist.reduce, sparse, one, group=group),
        "all_gather": partial(dist.all_gather, [torch.eye(ranks)] * ranks, sparse, group),
        "send": partial(dist.send, sparse, dist.get_global_rank(group, (own + 1) % ranks), group),
        "recv": partial(dist.recv, sparse, dist.get_global_rank(group, (own + 1) % ranks), group),
    }.items():
        refused(f"{name} of a sparse tensor", call, "layout")
    peer = dist.get_global_rank(group, (own + 1) % ranks)
    refused("a negative tag", partial(dist.isend, five, peer, group, tag=-1), "tag -1")
    refused("a tag above all", partial(dist.irecv, five, peer, group, tag=1 << 31), f"tag {1 << 31}")
    total = full(3)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [2.0 * ranks] * 3


for group in (world, others):
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        refuses_all(group)
refused("a root that is not there", partial(dist.broadcast, full(3), 3), "rank 3")
refused("a receiver that is not there", partial(dist.isend, full(3), 3), "rank 3")

# Fitting ones of other forms are not refused: uneven parts, splits, empty ones, columns.
rank, size = dist.get_rank(), dist.get_world_size()
parts = [torch.empty(2, r) for r in range(size)]
dist.all_gather(parts, torch.full((rank, 2), float(rank)).t())
assert all(torch.equal(part, torch.full((2, r), float(r))) for r, part in enumerate(parts))
output = torch.empty(rank * size, 2)
dist.all_to_all_single(output, torch.arange(2.0 * sum(range(size))).reshape(-1, 2), [rank] * size, list(range(size)))
first = 2 * sum(range(rank))
assert torch.equal(output, torch.arange(first, first + 2.0 * rank).reshape(-1, 2).repeat(size, 1))

# A message is as long as its tensor, or the receiver is told both sizes; what lies behind the tensor stays as it was.
FORMS = {
    "recv": lambda box: dist.recv(box, 0),
    "irecv": lambda box: dist.irecv(box, 0).wait(),
    "a future": lambda box: dist.irecv(box, 0).get_future().wait(),
    "batch_isend_irecv": lambda box: [work.wait() for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, box, 0)])],
    "from any rank": dist.recv,
}
SIZES = [(3, 5), (5, 3), (0, 2), (2, 0), (100_000, 10), (10, 100_000), (1_000_000, 300_000)]
for sent, taken in SIZES:
    memory = torch.full((max(sent, taken) + 10,), -1.0)
    box = memory[:taken]
    said = (f"{4 * sent} bytes", f"the tensor {4 * taken} ")
    for name, call in FORMS.items():
        if rank == 0:
            dist.send(full(sent), 1)
        elif rank == 1:
            refused(f"{name} of {sent} into {taken}", partial(call, box), *said)
    assert bool((memory == -1).all()), (sent, taken)

# Messages come in the order of the receives, whichever is waited for first, also behind one that was refused.
if rank == 0:
    for number in range(4):
        dist.send(full(2) * number, 1)
elif rank == 1:
    boxes = [full(3), full(2), full(2), full(2)]
    works = [dist.irecv(boxes[0], 0), dist.irecv(boxes[1]), dist.irecv(boxes[2], 0), dist.irecv(boxes[3])]
    for work in (works[3], works[1], works[2]):
        work.wait()
    refused("the first of four", works[0].wait, "8 bytes", "12")
    assert [int(box[0]) for box in boxes[1:]] == [2, 4, 6]
    assert works[3]._source_rank() == 0
dist.barrier()
print(f"rank {rank}: all were refused", flush=True)
dist.destroy_process_group()
