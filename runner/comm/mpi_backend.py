"""torch.distributed over the MPI that started the job: ``init_process_group("mpi4py")``, with stock torch wheels.

A c10d ``Backend`` in Python (torch 2.14 or newer lets one be derived). Each group has two communicators of its own, one
for collectives and one for messages, and a thread that makes its collective calls in order, so that they go on
while the caller computes. Messages are MPI's own non-blocking ones.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._C._distributed_c10d import Backend

from runner.comm.mpi_buffers import (
    Staged,
    apart,
    as_bytes,
    as_numbers,
    as_parts,
    blocks_in_pieces,
    bytes_of,
    check_same,
    hand_out,
    in_pieces,
    is_plain,
    joined,
    scratch,
    sendable,
    split_bytes,
)
from runner.comm.mpi_messages import Messages, becomes_true
from runner.comm.mpi_streams import Streams
from runner.comm.mpi_types import Reduction, reduction_of
from runner.comm.mpi_work import Caller, MPIWork, seconds_of
from runner.rendezvous.mpi import abandoned

if TYPE_CHECKING:
    from torch import Tensor

# Tags that every MPI has: the standard's least MPI_TAG_UB is 32767, and Intel MPI over TCP has few more than 2^19.
_TAGS = 1 << 15
_LAST_MESSAGES = 10.0  # seconds that messages may take when their group is destroyed
_HEAD_START = 1.0  # seconds by which rank 0 may fail a monitored barrier before the others do


def create_backend(options: Any, label: str) -> MPIBackend:
    """The backend of a group; called on its members only. The MPI allows several threads.

    Args:
        label: how messages name this rank.

    Raises:
        DistBackendError: not all members came within the group's time limit.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    timeout = options.timeout.total_seconds() if isinstance(options.timeout, timedelta) else float(options.timeout)
    world = MPI.COMM_WORLD
    own_key = _key(ranks[options.group_rank])
    options.store.set(own_key, str(world.rank))
    members = world.group.Incl(_mpi_ranks(options.store, ranks, timeout))
    comm = world.Create_group(members, zlib.crc32(str(options.group_id).encode()) % _TAGS)
    members.Free()
    options.store.delete_key(own_key)  # all have read it; a later group may find the store as this one did
    return MPIBackend(comm, timeout, label)


def _key(rank: int) -> str:
    return f"mpi4py {rank}"


def _mpi_ranks(store: Any, ranks: list[int], timeout: float) -> list[int]:
    """The members' ranks in MPI, in the order of their ranks in the group, which init_process_group() may give as it likes.

    Waits until all have said theirs: making a communicator has no time limit.

    Raises:
        DistBackendError: some are not in time.
    """
    keys = [_key(rank) for rank in ranks]
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        late = ", ".join(str(rank) for rank in ranks if not store.check([_key(rank)]))
        raise dist.DistBackendError(
            f"rank {late} did not come to make a group of {len(ranks)} within {timeout:.0f} s"
        ) from None
    return [int(value) for value in (store.multi_get(keys) if store.has_extended_api() else map(store.get, keys))]


class MPIBackend(Backend):
    """A group's operations. All ranks of a group call its collectives in the same order."""

    def __init__(self, comm: MPI.Intracomm, timeout: float, label: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm, self._comm_of_messages, self._timeout = comm, comm.Dup(), timeout
        self._streams = Streams()
        self._messages = Messages(self._comm_of_messages, self._streams)
        self._caller = Caller(label)
        self._barriers = 0  # monitored ones, as tags: messages on the collectives' communicator are only theirs

    def getBackendName(self) -> str:
        return "mpi4py"

    # torch looks for each of these in Python, and does not end where it finds its own.
    supports_splitting = supports_coalescing = supports_time_estimate = False
    supports_shrinking = supports_reconfigure = supports_window = False

    def _set_sequence_number_for_group(self) -> None:
        """Nothing is numbered."""

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        """End the thread and free the communicators, once all that was handed in is done.

        A thread that is still in a call after the group's time limit is left there, and the communicators with it; and so
        are messages that nobody takes.
        """
        if not self._caller.stop(self._timeout) or not self._messages.finish(min(self._timeout, _LAST_MESSAGES)):
            abandoned.set()
            return
        for comm in (self._comm, self._comm_of_messages):
            if comm != MPI.COMM_NULL and not MPI.Is_finalized():
                comm.Free()

    # Collectives: what the thread is to do, with tensors that MPI can take as they are.

    def allreduce(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        reductions = self._reductions(opts, tensors)

        def call() -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                self._allreduce(tensor, reduction)

        return self._call("allreduce", opts, tensors, call)

    allreduce_coalesced = allreduce

    def _reductions(self, opts: Any, tensors: Sequence[Tensor]) -> list[Reduction]:
        """Each tensor's; asked for in the caller, so that what is not defined is refused before anything is sent.

        Raises:
            TypeError: the operation is not defined for a tensor's dtype.
        """
        return [reduction_of(opts.reduceOp, tensor.dtype, self.size()) for tensor in tensors]

    def _allreduce(self, tensor: Tensor, reduction: Reduction) -> None:
        with staged(tensor, reduction) as data:
            in_pieces(
                data,
                lambda part: self._comm.Allreduce(
                    MPI.IN_PLACE, as_numbers(part, reduction.datatype), reduction.operation
                ),
            )

    def reduce(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        (tensor,) = tensors
        (reduction,) = self._reductions(opts, tensors)

        def call() -> None:
            is_root = self.rank() == opts.rootRank
            # What MPI leaves in the others' buffers is not theirs.
            with staged(tensor, reduction, keep=is_root) as data:

                def reduce(part: Tensor) -> None:
                    buffer = as_numbers(part, reduction.datatype)
                    if is_root:
                        self._comm.Reduce(MPI.IN_PLACE, buffer, reduction.operation, opts.rootRank)
                    else:
                        self._comm.Reduce(buffer, None, reduction.operation, opts.rootRank)

                in_pieces(data, reduce)

        return self._call("reduce", opts, tensors, call)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            for tensor in tensors:
                with Staged(tensor) as data:
                    in_pieces(data, lambda part: self._comm.Bcast(as_bytes(part), opts.rootRank))

        return self._call("broadcast", opts, tensors, call)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> MPIWork | None:
        return self._call("allgather", opts, [output], lambda: self._all_gather(output, input))

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            for output, own in zip(outputs, inputs, strict=True):
                self._all_gather(output, own)

        return self._call("allgather", opts, outputs, call)

    def _all_gather(self, output: Tensor, own: Tensor) -> None:
        check_same(output.numel(), own.numel() * self.size(), "allgather: the output's elements")
        if is_plain(output) and is_plain(own) and own.data_ptr() == output.data_ptr() + self.rank() * bytes_of(own):
            self._comm.Allgather(MPI.IN_PLACE, as_bytes(output, self.size()))  # it is in its place: FSDP's way
            return
        with Staged(output, receive_only=True) as data:
            source = apart(sendable(own), data)
            self._comm.Allgather(as_bytes(source), as_bytes(data, self.size()))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            for parts, own in zip(outputs, inputs, strict=True):
                self._gather_list(parts, own)

        return self._call("allgather", opts, [t for parts in outputs for t in parts], call)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            # A list of ranks, of tensors: the other way round.
            for index, own in enumerate(inputs):
                self._gather_list([of_rank[index] for of_rank in outputs], own)

        return self._call("allgather", opts, [t for parts in outputs for t in parts], call)

    def _gather_list(self, parts: Sequence[Tensor], own: Tensor) -> None:
        sizes = [bytes_of(part) for part in parts]
        data = scratch([sum(sizes)], torch.uint8, own)
        source = sendable(own)
        self._comm.Allgatherv(as_bytes(source), as_parts(data, sizes))
        hand_out(data, parts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            source = sendable(own)
            if self.rank() != opts.rootRank:
                self._comm.Gatherv(as_bytes(source), None, opts.rootRank)
                return
            (parts,) = outputs
            sizes = [bytes_of(part) for part in parts]
            data = scratch([sum(sizes)], torch.uint8, own)
            self._comm.Gatherv(as_bytes(source), as_parts(data, sizes), opts.rootRank)
            hand_out(data, parts)

        (own,) = inputs
        return self._call("gather", opts, [t for parts in outputs for t in parts], call, inputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> MPIWork | None:
        def call() -> None:
            (output,) = outputs
            with Staged(output, receive_only=True) as data:
                if self.rank() != opts.rootRank:
                    self._comm.Scatterv(None, as_bytes(data), opts.rootRank)
                    return
                (parts,) = inputs
                sizes = [bytes_of(part) for part in parts]
                whole = joined(parts)
                self._comm.Scatterv(as_parts(whole, sizes), as_bytes(data), opts.rootRank)

        return self._call("scatter", opts, outputs, call)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> MPIWork | None:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        reductions = self._reductions(opts, outputs)

        def call() -> None:
            for output, all_parts, reduction in zip(outputs, inputs, reductions, strict=True):
                self._reduce_scatter(output, all_parts, reduction)

        return self._call("reduce_scatter", opts, outputs, call)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> MPIWork | None:
        reductions = self._reductions(opts, outputs)

        def call() -> None:
            for output, parts, reduction in zip(outputs, inputs, reductions, strict=True):
                counts = [part.numel() for part in parts]
                whole = torch.cat([part.reshape(-1) for part in parts])
                self._reduce_scatter(output, whole, reduction, counts)

        return self._call("reduce_scatter", opts, outputs, call)

    def _reduce_scatter(
        self, output: Tensor, all_parts: Tensor, reduction: Reduction, counts: list[int] | None = None
    ) -> None:
        counts = counts or [output.numel()] * self.size()
        check_same(all_parts.numel(), sum(counts), "reduce_scatter: the input's elements")
        prepared = reduction.before(all_parts.detach()) if reduction.before else all_parts
        with staged(output, reduction, receive_only=True) as data:
            source = apart(sendable(prepared.to(reduction.dtype)), data)
            if len(set(counts)) > 1:
                send, receive = as_numbers(source, reduction.datatype), as_numbers(data, reduction.datatype)
                wide_counts = [count * reduction.width for count in counts]
                self._comm.Reduce_scatter(send, receive, wide_counts, reduction.operation)
            else:
                for part, its_sum in blocks_in_pieces(source, data, self.size()):
                    send, receive = as_numbers(part, reduction.datatype), as_numbers(its_sum, reduction.datatype)
                    self._comm.Reduce_scatter_block(send, receive, reduction.operation)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> MPIWork | None:
        def call() -> None:
            with Staged(output, receive_only=True) as data:
                source = apart(sendable(input), data)
                sent, received = (
                    split_bytes(tensor, splits, self.size())
                    for tensor, splits in ((source, input_splits), (data, output_splits))
                )
                self._comm.Alltoallv(as_parts(source, sent), as_parts(data, received))

        return self._call("all_to_all", opts, [output], call)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            source = joined(inputs)
            sent, received = ([bytes_of(part) for part in parts] for parts in (inputs, outputs))
            data = scratch([sum(received)], torch.uint8, inputs[0])
            self._comm.Alltoallv(as_parts(source, sent), as_parts(data, received))
            hand_out(data, outputs)

        return self._call("all_to_all", opts, outputs, call)

    def barrier(self, opts: Any) -> MPIWork | None:
        return self._call("barrier", opts, [], self._comm.Barrier)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool) -> None:
        """A barrier in which rank 0 hears from each rank, so that it can name one that has not come.

        Raises:
            DistBackendError: on rank 0, of the first rank that is missing, or of all; on the others a little later.
        """
        limit = seconds_of(opts.timeout, self._timeout)
        self._barriers += 1
        tag, nothing = self._barriers % _TAGS, [bytearray(), MPI.BYTE]
        if self.rank() != 0:
            self._comm.Isend(nothing, 0, tag).Free()
            if not becomes_true(self._comm.Irecv(nothing, 0, tag).Test, limit + _HEAD_START):
                raise dist.DistBackendError(
                    f"monitored_barrier: rank 0 did not say within {limit:.0f} s that all are there"
                )
            return
        deadline, missing = time.monotonic() + limit, []
        arrivals = [(rank, self._comm.Irecv(nothing, rank, tag)) for rank in range(1, self.size())]
        for rank, arrival in arrivals:
            if not becomes_true(arrival.Test, deadline - time.monotonic()):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            ranks = ", ".join(map(str, missing))
            raise dist.DistBackendError(
                f"monitored_barrier: no word from rank {ranks} of the group within {limit:.0f} s"
            )
        for rank, _ in arrivals:
            self._comm.Isend(nothing, rank, tag).Free()

    def _call(
        self, what: str, opts: Any, results: list[Tensor], call: Callable[[], object], inputs: Sequence[Tensor] = ()
    ) -> MPIWork | None:
        limit = seconds_of(opts.timeout, self._timeout)
        for tensor in (results or inputs)[:1]:
            call = self._streams.after_what_is_queued(tensor, call)
        if not opts.asyncOp and self._caller.call_now(what, limit, call):
            return None  # which is how torch is told that there is nothing to wait for
        return self._caller.hand_in(MPIWork(what, results, limit), call)

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> MPIWork:
        (tensor,) = tensors
        return self._messages.send(tensor, destination, tag, self._timeout)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> MPIWork:
        (tensor,) = tensors
        return self._messages.receive(tensor, source, tag, self._timeout)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> MPIWork:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)


def staged(tensor: Tensor, reduction: Reduction, *, keep: bool = True, receive_only: bool = False) -> Staged:
    """A tensor as MPI can reduce it."""
    return Staged(
        tensor,
        reduction.dtype,
        before=reduction.before,
        after=reduction.after,
        width=reduction.width,
        keep=keep,
        receive_only=receive_only,
    )
