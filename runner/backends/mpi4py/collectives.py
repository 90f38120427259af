"""The collectives: each is a generator that makes non-blocking MPI calls on a group's communicator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mpi4py import MPI
from torch import Tensor

from runner.backends.mpi4py.blocking import Blocking
from runner.backends.mpi4py.buffers import (
    Staged,
    apart,
    as_bytes,
    as_numbers,
    as_parts,
    blocks_in_pieces,
    joined,
    pieces,
    scatter_into,
    scratch,
    sendable,
    split_bytes,
)
from runner.backends.mpi4py.tasks import Steps
from runner.backends.mpi4py.types import Reduction


def allreduce(comm: MPI.Intracomm, blocking: Blocking, tensors: Sequence[Tensor], reductions: list[Reduction]) -> Steps:
    for tensor, reduction in zip(tensors, reductions, strict=True):
        with staged(tensor, reduction) as data:
            with_one_call = blocking.is_faster("allreduce", data.nbytes) and (yield from blocking.is_agreed())
            for part in pieces(data):
                buffer = as_numbers(part, reduction.datatype)
                if with_one_call:
                    comm.Allreduce(MPI.IN_PLACE, buffer, reduction.operation)
                else:
                    yield comm.Iallreduce(MPI.IN_PLACE, buffer, reduction.operation)


def reduce(comm: MPI.Intracomm, tensor: Tensor, reduction: Reduction, root: int) -> Steps:
    is_root = comm.rank == root
    # Only the root gets the result; what MPI leaves in other ranks' buffers is not copied back.
    with staged(tensor, reduction, copy_back=is_root) as data:
        for part in pieces(data):
            buffer = as_numbers(part, reduction.datatype)
            if is_root:
                yield comm.Ireduce(MPI.IN_PLACE, buffer, reduction.operation, root)
            else:
                yield comm.Ireduce(buffer, None, reduction.operation, root)


def broadcast(comm: MPI.Intracomm, tensors: Sequence[Tensor], root: int) -> Steps:
    for tensor in tensors:
        with Staged(tensor) as data:
            for part in pieces(data):
                yield comm.Ibcast(as_bytes(part), root)


def all_gather_single(
    comm: MPI.Intracomm, blocking: Blocking, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> Steps:
    size = comm.size
    for output, own in zip(outputs, inputs, strict=True):
        with_one_call = blocking.is_faster("allgather", own.nbytes) and (yield from blocking.is_agreed())
        gather = comm.Allgather if with_one_call else comm.Iallgather
        with Staged(output, receive_only=True) as data:
            source = sendable(own)
            if source.data_ptr() == data.data_ptr() + comm.rank * own.nbytes:
                request = gather(MPI.IN_PLACE, as_bytes(data, size))  # the input is its part of the output, as in FSDP
            else:
                source = apart(source, data)
                request = gather(as_bytes(source), as_bytes(data, size))
            if request is not None:
                yield request


def allgather(comm: MPI.Intracomm, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> Steps:
    for parts, own in zip(outputs, inputs, strict=True):
        sizes = [part.nbytes for part in parts]
        data = scratch([sum(sizes)], torch.uint8, own)
        source = sendable(own)
        yield comm.Iallgatherv(as_bytes(source), as_parts(data, sizes))
        scatter_into(data, parts)


def gather(comm: MPI.Intracomm, outputs: Sequence[Sequence[Tensor]], own: Tensor, root: int) -> Steps:
    source = sendable(own)
    if comm.rank != root:
        yield comm.Igatherv(as_bytes(source), None, root)
        return
    (parts,) = outputs
    sizes = [part.nbytes for part in parts]
    data = scratch([sum(sizes)], torch.uint8, own)
    yield comm.Igatherv(as_bytes(source), as_parts(data, sizes), root)
    scatter_into(data, parts)


def scatter(comm: MPI.Intracomm, output: Tensor, inputs: Sequence[Sequence[Tensor]], root: int) -> Steps:
    with Staged(output, receive_only=True) as data:
        if comm.rank != root:
            yield comm.Iscatterv(None, as_bytes(data), root)
            return
        (parts,) = inputs
        sizes = [part.nbytes for part in parts]
        whole = joined(parts)
        yield comm.Iscatterv(as_parts(whole, sizes), as_bytes(data), root)


def reduce_scatter(
    comm: MPI.Intracomm, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], reductions: list[Reduction]
) -> Steps:
    for output, parts, reduction in zip(outputs, inputs, reductions, strict=True):
        counts = [part.numel() for part in parts]
        whole = torch.cat([part.reshape(-1) for part in parts])
        yield from _reduce_scatter(comm, output, whole, reduction, counts)


def reduce_scatter_single(
    comm: MPI.Intracomm, outputs: Sequence[Tensor], inputs: Sequence[Tensor], reductions: list[Reduction]
) -> Steps:
    for output, whole, reduction in zip(outputs, inputs, reductions, strict=True):
        yield from _reduce_scatter(comm, output, whole, reduction, [output.numel()] * comm.size)


def _reduce_scatter(
    comm: MPI.Intracomm, output: Tensor, whole: Tensor, reduction: Reduction, counts: list[int]
) -> Steps:
    prepared = reduction.before(whole.detach()) if reduction.before else whole
    with staged(output, reduction, receive_only=True) as data:
        source = apart(sendable(prepared.to(reduction.dtype), reduced=True), data)
        if len(set(counts)) > 1:
            send, receive = as_numbers(source, reduction.datatype), as_numbers(data, reduction.datatype)
            wide_counts = [count * reduction.width for count in counts]
            yield comm.Ireduce_scatter(send, receive, wide_counts, reduction.operation)
        else:
            for part, its_sum in blocks_in_pieces(source, data, comm.size):
                send, receive = as_numbers(part, reduction.datatype), as_numbers(its_sum, reduction.datatype)
                yield comm.Ireduce_scatter_block(send, receive, reduction.operation)


def all_to_all_single(
    comm: MPI.Intracomm, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
) -> Steps:
    with Staged(output, receive_only=True) as data:
        source = apart(sendable(input), data)
        sent = split_bytes(source, input_splits, comm.size)
        received = split_bytes(data, output_splits, comm.size)
        yield comm.Ialltoallv(as_parts(source, sent), as_parts(data, received))


def alltoall(comm: MPI.Intracomm, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps:
    source = joined(inputs)
    sent, received = ([part.nbytes for part in parts] for parts in (inputs, outputs))
    data = scratch([sum(received)], torch.uint8, inputs[0])
    yield comm.Ialltoallv(as_parts(source, sent), as_parts(data, received))
    scatter_into(data, outputs)


def barrier(comm: MPI.Intracomm) -> Steps:
    yield comm.Ibarrier()


def sparse_allreduce(comm: MPI.Intracomm, tensors: Sequence[Tensor], reductions: list[Reduction]) -> Steps:
    """Sums of sparse COO tensors: every rank gathers all entries, and adds those with the same indices."""
    for tensor, reduction in zip(tensors, reductions, strict=True):
        own = tensor.detach().coalesce()
        indices, values = own.indices().contiguous(), own.values().contiguous()
        count = torch.tensor([indices.shape[1]], device="cpu")
        counts = torch.empty(comm.size, dtype=torch.int64, device="cpu")
        yield comm.Iallgather(as_bytes(count), as_bytes(counts, comm.size))
        entries = counts.tolist()
        all_indices = [indices.new_empty((indices.shape[0], count)) for count in entries]
        yield from allgather(comm, [all_indices], [indices])
        all_values = [values.new_empty((count, *values.shape[1:])) for count in entries]
        yield from allgather(comm, [all_values], [values])
        total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), tensor.shape).coalesce()
        if reduction.after is not None:
            total = torch.sparse_coo_tensor(
                total.indices(), reduction.after(total.values()), tensor.shape, is_coalesced=True
            )
        with torch.no_grad():  # with detach() the tensor would keep its old number of entries
            tensor.copy_(total)


def staged(tensor: Tensor, reduction: Reduction, *, copy_back: bool = True, receive_only: bool = False) -> Staged:
    """The tensor in the form that its reduction needs."""
    if reduction.is_direct:
        return Staged(tensor, copy_back=copy_back, receive_only=receive_only, reduced=True)
    return Staged(
        tensor,
        reduction.dtype,
        before=reduction.before,
        after=reduction.after,
        width=reduction.width,
        copy_back=copy_back,
        receive_only=receive_only,
        reduced=True,
    )
