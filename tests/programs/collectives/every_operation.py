"""Every operation × dtype × reduction × shape on the mpi4py backend, against gloo where gloo has it, else arithmetic.

mpirun -np 4 python -m runner tests/programs/collectives/every_operation.py [cuda] [leave]
"""

import itertools
import sys
import warnings

import torch
import torch.distributed as dist
from newest_names import sum_of_products
from torch.distributed import ReduceOp

from runner.backends.mpi4py import buffers as mpi_buffers
from runner.versions.torch_api import known_dtypes

warnings.filterwarnings("ignore")
device = "cuda" if "cuda" in sys.argv else "cpu"
torch.set_default_device(device)
dist.init_process_group("mpi4py")
gloo = dist.new_group(backend="gloo")
rank, size = dist.get_rank(), dist.get_world_size()
SHAPES = [(0,), (1,), (17, 5), (1 << 15,)]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOATS8 = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
HALF_COMPLEX = [torch.complex32, *known_dtypes("bcomplex32")]
OTHERS = [torch.bool, torch.complex64, torch.complex128, *HALF_COMPLEX]
# What torch does not compare.
COMPARED_AS = dict.fromkeys(FLOATS8, torch.float32) | dict.fromkeys(HALF_COMPLEX, torch.complex64)
REDUCTIONS = [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
checks = []  # what was compared


def values(of_rank, dtype, shape):
    """Small numbers that sums and products of a few ranks keep exact, different on every rank."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 7 + of_rank * 3) % 4
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers % 3).double()).to(dtype).reshape(shape)
    return numbers.to(dtype).reshape(shape)


def expected(kind, dtype, shape):
    """The reduction over all ranks, by arithmetic in a type that holds it."""
    stacked = torch.stack([values(r, dtype, shape) for r in range(size)])
    if dtype == torch.bool:
        return (
            stacked.all(0)
            if kind in (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND)
            else (stacked.sum(0) % 2 == 1 if kind == ReduceOp.BXOR else stacked.any(0))
        )
    if kind in BITWISE:
        functions = {ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor}
        found = stacked[0]
        for other in stacked[1:]:
            found = functions[kind](found, other)
        return found
    wide = stacked.to(torch.complex128 if dtype.is_complex else torch.float64)
    if kind == ReduceOp.AVG:
        mean = wide.sum(0) / size
        return (mean if dtype.is_floating_point or dtype.is_complex else mean.trunc()).to(dtype)
    reduced = {ReduceOp.SUM: lambda w: w.sum(0), ReduceOp.PRODUCT: lambda w: w.prod(0)}
    ordered = {ReduceOp.MIN: lambda w: w.amin(0), ReduceOp.MAX: lambda w: w.amax(0)}
    return (reduced | ordered)[kind](wide).to(dtype)


def same(found, wanted, *what):
    checks.append(what)
    if found.dtype == wanted.dtype and found.dtype in COMPARED_AS:
        found, wanted = (tensor.to(COMPARED_AS[tensor.dtype]) for tensor in (found, wanted))
    if found.dtype == wanted.dtype and torch.equal(found, wanted):  # assert_close takes its time
        return
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True)
    except AssertionError as error:
        sys.exit(f"rank {rank}: {what}: {error}")


def is_defined(kind, dtype):
    if dtype == torch.bool:
        return kind != ReduceOp.AVG
    if kind in BITWISE:
        return not (dtype.is_floating_point or dtype.is_complex)
    return not dtype.is_complex or kind in (ReduceOp.SUM, ReduceOp.AVG)  # torch lets no others through


def moves(everyone, *what, part=None):
    """All calls that move tensors as they are.

    Args:
        everyone: the tensor of each rank.
        part: (sender, receiver) → what an all_to_all sends; without it each sends its own tensor to all.
    """
    own, together = everyone[rank], torch.stack(everyone)
    tensor = own.clone()
    dist.broadcast(tensor, size - 1)
    same(tensor, everyone[-1], "broadcast", *what)
    gathered = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(gathered, own)
    same(torch.stack(gathered), together, "all_gather", *what)
    joined = torch.empty_like(together)
    dist.all_gather_into_tensor(joined, own)
    same(joined, together, "all_gather_into_tensor", *what)
    gathered = [torch.empty_like(own) for _ in range(size)] if rank == 0 else None
    dist.gather(own, gathered, 0)
    if gathered:
        same(torch.stack(gathered), together, "gather", *what)
    received = torch.empty_like(own)
    dist.scatter(received, everyone if rank == size - 1 else None, size - 1)
    same(received, own, "scatter", *what)
    part = part or (lambda sender, _: everyone[sender])
    outgoing, wanted = [part(rank, r) for r in range(size)], torch.stack([part(r, rank) for r in range(size)])
    incoming = [torch.empty_like(own) for _ in range(size)]
    dist.all_to_all(incoming, outgoing)
    same(torch.stack(incoming), wanted, "all_to_all", *what)
    mixed = torch.empty_like(together)
    dist.all_to_all_single(mixed, torch.stack(outgoing))
    same(mixed, wanted, "all_to_all_single", *what)
    if size > 1:
        arrived, after, before = torch.empty_like(own), (rank + 1) % size, (rank - 1) % size
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, own, after), dist.P2POp(dist.irecv, arrived, before)]
        ):
            work.wait()
        same(arrived, everyone[before], "batch_isend_irecv", *what)


FEW = [dtype for dtype in INTEGERS + FLOATS8 + OTHERS if dtype not in (torch.uint8, torch.int64, torch.bool)]
for dtype, shape in itertools.product(INTEGERS + FLOATS + FLOATS8 + OTHERS, SHAPES):
    if dtype in FEW and shape not in ((0,), (17, 5)):  # what is done to them is the same at any size
        continue
    own = values(rank, dtype, shape)
    everyone = [values(r, dtype, shape) for r in range(size)]
    for kind in filter(lambda kind: is_defined(kind, dtype), REDUCTIONS + BITWISE):
        wanted = expected(kind, dtype, shape)
        tensor = own.clone()
        dist.all_reduce(tensor, kind)
        same(tensor, wanted, "all_reduce", kind, dtype, shape)
        tensor = own.clone()
        dist.reduce(tensor, size - 1, kind)
        same(tensor, wanted if rank == size - 1 else own, "reduce", kind, dtype, shape)
        parts = [values(rank + r, dtype, shape) for r in range(size)]
        scattered = torch.empty_like(own)
        dist.reduce_scatter(scattered, parts, kind)
        single = torch.empty_like(own)
        dist.reduce_scatter_tensor(single, torch.stack(parts), kind)
        reduced = torch.stack(parts).contiguous()
        dist.all_reduce(reduced, kind)
        same(scattered, reduced[rank], "reduce_scatter", kind, dtype, shape)
        same(single, reduced[rank], "reduce_scatter_tensor", kind, dtype, shape)
    moves(
        everyone,
        dtype,
        shape,
        part=lambda sender, receiver, dtype=dtype, shape=shape: values(sender * size + receiver, dtype, shape),
    )

for dtype, kind in itertools.product([torch.float32, torch.int64, torch.bfloat16], [ReduceOp.SUM, ReduceOp.MAX]):
    one, other = values(rank, dtype, (40, 3)), values(rank, dtype, (40, 3))
    try:
        dist.all_reduce(other, kind, group=gloo)
    except RuntimeError:
        continue
    dist.all_reduce(one, kind)
    same(one, other, "all_reduce as gloo", kind, dtype)

# What is not contiguous, and a view into something larger.
whole = torch.arange(24, dtype=torch.float32).reshape(4, 6) + rank
tensor = whole.t()[1:4]
dist.all_reduce(tensor)
same(whole[:, 1:4], (torch.arange(24.0).reshape(4, 6) * size + sum(range(size)))[:, 1:4], "a view")
same(whole[:, 0], torch.arange(24.0).reshape(4, 6)[:, 0] + rank, "beside the view")

# Larger than one call may be: in pieces, the last of them smaller.
largest, mpi_buffers.LARGEST_CALL = mpi_buffers.LARGEST_CALL, 64
total = torch.arange(50.0) * size + sum(range(size))
tensor = torch.arange(50.0) + rank
dist.all_reduce(tensor)
same(tensor, total, "all_reduce in pieces")
tensor = torch.arange(50.0) + rank
dist.reduce(tensor, 0)
same(tensor, total if rank == 0 else torch.arange(50.0) + rank, "reduce in pieces")
tensor = torch.arange(50.0) + rank
dist.broadcast(tensor, size - 1)
same(tensor, torch.arange(50.0) + size - 1, "broadcast in pieces")
mpi_buffers.LARGEST_CALL = largest

# Of more elements than an int counts, if that were a small one.
largest, mpi_buffers.LARGEST_COUNT = mpi_buffers.LARGEST_COUNT, 16
own = torch.arange(9.0) + rank
parts = [torch.arange(9.0) + r for r in range(size)]
moves(parts, "large")
everyone = torch.stack(parts)
joined = torch.empty(size, 9)
joined[rank] = own
dist.all_gather_into_tensor(joined, joined[rank])
same(joined, everyone, "a large all_gather_into_tensor in place")
uneven = [torch.empty(5 * r) for r in range(size)]
dist.all_gather(uneven, torch.full((5 * rank,), float(rank)))
same(torch.cat(uneven), torch.cat([torch.full((5 * r,), float(r)) for r in range(size)]), "a large uneven all_gather")
scattered = torch.empty(9)
dist.reduce_scatter_tensor(scattered, (everyone + rank).flatten())
same(scattered, own * size + sum(range(size)), "a large reduce_scatter_tensor")
mpi_buffers.LARGEST_COUNT = largest

# Uneven parts.
lengths = [r + 1 for r in range(size)]
uneven = [torch.empty(n) for n in lengths]
dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
for r in range(size):
    same(uneven[r], torch.full((r + 1,), float(r)), "all_gather of uneven parts")
output = torch.empty(size * (rank + 1))
dist.all_to_all_single(output, torch.arange(float(sum(lengths))), [rank + 1] * size, [r + 1 for r in range(size)])
first = sum(range(rank + 1))
same(output, torch.arange(first, first + rank + 1.0).repeat(size), "all_to_all_single with splits")

# What is sent is not contiguous: a copy is, and has to live as long as the call.
columns = (torch.arange(1 << 16, dtype=torch.float32).reshape(256, 256) + rank).t()
everyone = torch.stack([columns - rank + r for r in range(size)])
for _ in range(20):
    joined = torch.empty(size, 256, 256)
    dist.all_gather_into_tensor(joined, columns)
    same(joined, everyone, "all_gather_into_tensor of columns")
    gathered = [torch.empty(256, 256) for _ in range(size)]
    dist.all_gather(gathered, columns)
    same(torch.stack(gathered), everyone, "all_gather of columns")
    gathered = [torch.empty(256, 256) for _ in range(size)] if rank == 0 else None
    dist.gather(columns, gathered, 0)
    if gathered:
        same(torch.stack(gathered), everyone, "gather of columns")

# Buffers that share memory.
together = torch.full((size, 5), -1.0)
together[rank] = rank
dist.all_gather_into_tensor(together, together[rank])
same(together, torch.arange(float(size)).repeat_interleave(5).reshape(size, 5), "all_gather_into_tensor in place")
if size > 1:
    together[(rank + 1) % size] = rank
    dist.all_gather_into_tensor(together, together[(rank + 1) % size])
    same(together, torch.arange(float(size)).repeat_interleave(5).reshape(size, 5), "all_gather_into_tensor within")
together.fill_(rank)
dist.reduce_scatter_tensor(together[rank], together)
same(together[rank], torch.full((5,), float(sum(range(size)))), "reduce_scatter_tensor into its input")
together.fill_(rank)
dist.all_to_all_single(together, together)
same(together, torch.arange(float(size)).repeat_interleave(5).reshape(size, 5), "all_to_all_single into its input")

# Means of integers are rounded towards zero, and right where the sum does not fit.
SPECIAL = {
    torch.int8: [127, -128, 100, -7],
    torch.uint16: [65535, 60000, 65533, 7],
    torch.uint32: [2**32 - 1, 2**31 + 5, 2**32 - 6, 7],
    torch.int64: [2**63 - 1, -(2**63), 2**62 + 3, -7],
    torch.uint64: [2**64 - 1, 2**63 + 10, 2**63 - 10, 7],
}
for dtype, numbers in SPECIAL.items():
    of_ranks = [[number - r if number > 0 else number + r for number in numbers] for r in range(size)]
    totals = [sum(column) for column in zip(*of_ranks, strict=True)]
    wanted = torch.tensor([abs(total) // size * (1 if total > 0 else -1) for total in totals], dtype=dtype)
    own = torch.tensor(of_ranks[rank], dtype=dtype)
    tensor = own.clone()
    dist.all_reduce(tensor, ReduceOp.AVG)
    same(tensor, wanted, "all_reduce AVG of large numbers", dtype)
    tensor = own.clone()
    dist.reduce(tensor, 0, ReduceOp.AVG)
    same(tensor, wanted if rank == 0 else own, "reduce AVG of large numbers", dtype)
    scattered = torch.empty_like(own)
    dist.reduce_scatter_tensor(scattered, own.repeat(size), ReduceOp.AVG)
    same(scattered, wanted, "reduce_scatter_tensor AVG of large numbers", dtype)
    uneven = [own.repeat(r + 1) for r in range(size)]
    scattered = torch.empty_like(uneven[rank])
    dist.reduce_scatter(scattered, uneven, ReduceOp.AVG)
    same(scattered, wanted.repeat(rank + 1), "reduce_scatter AVG of large numbers in uneven parts", dtype)

# Multiplied before they are summed: in the type that they are summed in, where theirs could not hold the product.
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, *FLOATS8, torch.complex64):
    if dtype == torch.float8_e8m0fnu:
        of_ranks = torch.full((size, 3), 2.0**100).to(dtype)
    else:
        of_ranks = torch.tensor([[(-1) ** r * 208.0, r + 1.0, 2.0] for r in range(size)]).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for factor in (400.0, 1 / 3, torch.tensor(400.0)):
        wanted = (of_ranks.to(wide) * float(factor)).sum(0).to(dtype)
        premultiplied = sum_of_products(factor)
        if not dtype.is_complex:  # torch's own word for all_reduce
            tensor = of_ranks[rank].clone()
            dist.all_reduce(tensor, premultiplied)
            same(tensor, wanted, "all_reduce PREMUL_SUM", dtype, factor)
        scattered = torch.empty(3, dtype=dtype)
        dist.reduce_scatter_tensor(scattered, torch.cat([of_ranks[rank]] * size), premultiplied)
        same(scattered, wanted, "reduce_scatter PREMUL_SUM", dtype, factor)

# What is not defined is refused with a line before anything is sent, and the group continues.
PREMUL = sum_of_products(2.0)
UNDEFINED = [(ReduceOp.AVG, torch.bool), *itertools.product([PREMUL], [*INTEGERS, torch.bool])]
UNDEFINED += itertools.product(BITWISE, FLOATS + FLOATS8)
UNDEFINED += itertools.product([ReduceOp.MIN, ReduceOp.MAX, *BITWISE], [torch.complex64, torch.complex32])
for kind, dtype in UNDEFINED:
    for name, call in {
        "all_reduce": dist.all_reduce,
        "reduce": lambda tensor, kind: dist.reduce(tensor, 0, kind),
        "reduce_scatter": lambda tensor, kind: dist.reduce_scatter(tensor[:2], [tensor[:2]] * size, kind),
        "reduce_scatter_tensor": lambda tensor, kind: dist.reduce_scatter_tensor(tensor[:2], tensor, kind),
    }.items():
        tensor = torch.ones(2 * size).to(dtype)
        try:
            call(tensor, kind)
        except (TypeError, ValueError) as error:  # a ValueError is torch's own, of complex tensors
            is_said = "is not defined" in str(error) or (dtype.is_complex and "does not support" in str(error))
            same(torch.tensor(is_said), torch.tensor(True), "the message", str(error))
            same(tensor, torch.ones(2 * size).to(dtype), "what was refused", name, kind, dtype)
        else:
            sys.exit(f"{name} {kind} of {dtype} was not refused")
together = [torch.full((3,), float(rank)), torch.ones(3, dtype=torch.bool)]
try:
    with dist._coalescing_manager():
        for tensor in together:
            dist.all_reduce(tensor, ReduceOp.AVG)
except TypeError:
    same(together[0], torch.full((3,), float(rank)), "what was asked for together with what was refused")
else:
    sys.exit("AVG of a bool among others was not refused")

# Asynchronous, with futures, and objects.
works = [dist.all_reduce(torch.ones(1 << 14), async_op=True) for _ in range(20)]
for work in works:
    (found,) = work.get_future().wait()
    same(found, torch.full((1 << 14,), float(size)), "a future")


# Waited for at once, later, or not at all until others have been asked for; and with callbacks: always in order.
for step in range(72):
    summed = [torch.full((3,), float(step)) for _ in range(step % 3 + 1)]
    works = [dist.all_reduce(one, async_op=True) for one in summed]
    follow = works[-1].get_future().then(lambda future: future.value()[0] + 1) if step % 4 == 0 else None
    if step % 2:
        works[0].wait()
    tensor = torch.full((5,), float(step))
    dist.all_reduce(tensor)
    same(tensor, torch.full((5,), float(step * size)), "a synchronous one among others", step)
    for one, work in zip(summed, works, strict=True):
        work.wait()
        same(one, torch.full((3,), float(step * size)), "one of several", step)
    if follow is not None:
        same(follow.wait(), torch.full((3,), step * size + 1.0), "a callback among others", step)


# A callback that communicates and waits, as PowerSGD's hook does; errors that a future hands on.
def again(future):
    (half,) = dist.all_reduce(future.value()[0] / 2, async_op=True).get_future().wait()
    return half


chained = dist.all_reduce(torch.ones(8), async_op=True).get_future().then(again)
same(chained.wait(), torch.full((8,), size * size / 2.0), "a collective in a callback")
if size > 1 and rank == 0:
    dist.send(torch.ones(2), 1)
elif rank == 1:
    try:
        dist.irecv(torch.empty(3), 0).get_future().wait()
    except Exception as error:
        same(torch.tensor("has 8 bytes" in str(error)), torch.tensor(True), "an error through a future")
    else:
        sys.exit("a future of a call that failed has a value")
leaf = torch.ones(3, requires_grad=True)
dist.all_reduce(leaf, ReduceOp.AVG, async_op=True).wait()
same(leaf.detach(), torch.ones(3), "AVG of a leaf")
if size > 1 and rank == 0:
    sent = dist.isend(torch.ones(2), 1)
    answered = torch.empty(2)
    sent.get_future().then(lambda _: dist.isend(torch.full((2,), 2.0), 1).wait()).wait()
elif rank == 1:
    for value in (1.0, 2.0):
        box = torch.empty(2)
        dist.recv(box, 0)
        same(box, torch.full((2,), value), "a message sent in a callback")
listed = [None] * size
dist.all_gather_object(listed, {"rank": rank, "text": "x" * rank})
same(torch.tensor([entry["rank"] for entry in listed]), torch.arange(size), "all_gather_object")
names = [f"from {rank}"] if rank == 0 else [None]
dist.broadcast_object_list(names)
same(torch.tensor(names == ["from 0"]), torch.tensor(True), "broadcast_object_list")

# A group's own methods, in the forms that are for people.
world, last = dist.group.WORLD, size - 1
ones, mine = torch.ones(3), torch.full((3,), float(rank))
for form, call, wanted in (
    ("allreduce of a list", lambda one: world.allreduce([one], ReduceOp.SUM), ones * sum(range(size))),
    ("allreduce of a tensor", lambda one: world.allreduce(one, ReduceOp.MAX), ones * last),
    ("allreduce by default", world.allreduce, ones * sum(range(size))),
    ("allreduce by its name", lambda one: world.allreduce([one], op=ReduceOp.MIN), ones * 0),
    ("broadcast", lambda one: world.broadcast(one, last), ones * last),
    ("broadcast by its name", lambda one: world.broadcast(one, root=last), ones * last),
    ("reduce", lambda one: world.reduce(one, last, ReduceOp.SUM), ones * sum(range(size)) if rank == last else mine),
):
    tensor = mine.clone()
    call(tensor).wait()
    same(tensor, wanted, form)
parts = [torch.empty(3) for _ in range(size)]
world.allgather(parts, mine).wait()
same(torch.stack(parts)[:, 0], torch.arange(float(size)), "allgather of a tensor")
tensor = torch.empty(3)
world.reduce_scatter(tensor, [ones * r for r in range(size)], ReduceOp.SUM).wait()
same(tensor, ones * rank * size, "reduce_scatter of a tensor")
world.scatter(tensor, [ones * r for r in range(size)] if rank == last else [], last).wait()
same(tensor, mine, "scatter of a tensor")
world.barrier().wait()

# Messages with tags, out of order.
if size > 1 and rank == 0:
    requests = [dist.isend(torch.full((1000 * tag,), float(tag)), 1, tag=tag) for tag in (1, 2, 3)]
    for request in requests:
        request.wait()
elif rank == 1:
    boxes = {tag: torch.empty(1000 * tag) for tag in (3, 1, 2)}
    for tag, box in boxes.items():
        dist.recv(box, 0, tag=tag)
        same(box, torch.full((1000 * tag,), float(tag)), "tag", tag)

# A message that nobody waits for, whose memory is let go at once, arrives all the same.
if size > 1 and rank == 0:
    dist.isend(torch.full((1 << 20,), 7.0), 1)
    for _ in range(8):
        torch.zeros(1 << 20)  # what would come to lie in its place
elif rank == 1:
    box = torch.empty(1 << 20)
    dist.recv(box, 0)
    same(box, torch.full((1 << 20,), 7.0), "a message let go")
if size > 1 and rank < 2:  # rank 0 moves its message on by the next one
    other = torch.empty(1)
    pair = [dist.P2POp(dist.isend, torch.ones(1), 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()

# Groups of some of the ranks, two at a time, in another order than the ranks'.
halves = [list(range(0, size, 2)), list(range(1, size, 2))]
for members in halves:
    group = dist.new_group(members) if members else None
    if rank in members:
        tensor = torch.ones(4)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((4,), float(len(members))), "a group")
mesh = torch.distributed.device_mesh.init_device_mesh(device, (size,))
tensor = torch.ones(2)
dist.all_reduce(tensor, group=mesh.get_group())
same(tensor, torch.full((2,), float(size)), "a device mesh")
for _ in range(3):
    dist.monitored_barrier()
if device == "cuda":  # what is queued goes first: the GPU is still multiplying when the sum is asked for
    factor = torch.ones(4096, 4096)
    for asynchronous in (False, True):
        product = factor @ factor
        work = dist.all_reduce(product, async_op=asynchronous)
        if work is not None:
            work.wait()
        same(product, torch.full((4096, 4096), 4096.0 * size), "after what is queued", asynchronous)
dist.barrier()
print(f"rank {rank}: {len(checks)} checks", flush=True)
if "leave" not in sys.argv:
    dist.destroy_process_group()
