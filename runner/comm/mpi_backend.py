"""torch.distributed over the MPI that started the job: ``init_process_group("mpi4py")``, with stock torch wheels.

A c10d ``Backend`` in Python (torch 2.14 or newer lets one be derived). Each group has two communicators of its own, one
for collectives and one for messages, and a thread that makes its collective calls in order, so that they go on
while the caller computes. Messages are MPI's own non-blocking ones.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._C._distributed_c10d import Backend

from runner.comm.mpi_types import as_bytes, as_numbers, in_pieces, is_plain, reduction_of
from runner.comm.mpi_work import Caller, MPIWork, seconds_of
from runner.rendezvous.mpi import abandoned

if TYPE_CHECKING:
    from torch import Tensor

# Tags that every MPI has: the standard's least MPI_TAG_UB is 32767, and Intel MPI over TCP has few more than 2^19.
_TAGS = 1 << 15
_LAST_MESSAGES = 10.0  # seconds that a message may take when its group is destroyed
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
    _gather_members(options.store, MPI.COMM_WORLD.rank, ranks, timeout)
    world = MPI.COMM_WORLD
    members = world.group.Incl(ranks)
    comm = world.Create_group(members, zlib.crc32(str(options.group_id).encode()) % _TAGS)
    members.Free()
    return MPIBackend(comm, comm.Dup(), timeout, label)


def _gather_members(store: Any, own: int, ranks: list[int], timeout: float) -> None:
    """Wait until all members are here: making a communicator has no time limit.

    Raises:
        DistBackendError: some are not in time.
    """
    store.set(f"mpi4py {own}", "")
    try:
        store.wait([f"mpi4py {rank}" for rank in ranks], timedelta(seconds=timeout))
    except RuntimeError:
        late = ", ".join(str(rank) for rank in ranks if not store.check([f"mpi4py {rank}"]))
        raise dist.DistBackendError(
            f"rank {late} did not come to make a group of {len(ranks)} within {timeout:.0f} s"
        ) from None


class MPIBackend(Backend):
    """A group's operations. All ranks of a group call its collectives in the same order."""

    def __init__(self, comm: MPI.Intracomm, messages: MPI.Intracomm, timeout: float, label: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm, self._messages, self._timeout = comm, messages, timeout
        self._caller = Caller(label)
        self._barriers = 0  # monitored ones, as tags: messages on the collectives' communicator are only theirs
        self._under_way: list[_Message] = []  # their memory is MPI's until they are done, whoever has let go of them
        self._tracking = threading.Lock()

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
        if not self._caller.stop(self._timeout) or not all(
            _becomes_true(message.move_on, min(self._timeout, _LAST_MESSAGES)) for message in self._under_way
        ):
            abandoned.set()
            return
        for comm in (self._comm, self._messages):
            if comm != MPI.COMM_NULL and not MPI.Is_finalized():
                comm.Free()

    # Collectives: what the thread is to do, with tensors that MPI can take as they are.

    def allreduce(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            for tensor in tensors:
                self._allreduce(tensor, opts.reduceOp)

        return self._call("allreduce", opts, tensors, call)

    allreduce_coalesced = allreduce

    def _allreduce(self, tensor: Tensor, operation: Any) -> None:
        reduction = reduction_of(operation, tensor.dtype, self.size())
        with _Staged(tensor, reduction.dtype, before=reduction.before) as data:
            in_pieces(
                data,
                lambda part: self._comm.Allreduce(
                    MPI.IN_PLACE, as_numbers(part, reduction.datatype), reduction.operation
                ),
            )
            reduction.finish(data)

    def reduce(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            (tensor,) = tensors
            reduction = reduction_of(opts.reduceOp, tensor.dtype, self.size())
            is_root = self.rank() == opts.rootRank
            # What MPI leaves in the others' buffers is not theirs.
            with _Staged(tensor, reduction.dtype, before=reduction.before, keep=is_root) as data:

                def reduce(part: Tensor) -> None:
                    buffer = as_numbers(part, reduction.datatype)
                    if is_root:
                        self._comm.Reduce(MPI.IN_PLACE, buffer, reduction.operation, opts.rootRank)
                    else:
                        self._comm.Reduce(buffer, None, reduction.operation, opts.rootRank)

                in_pieces(data, reduce)
                if is_root:
                    reduction.finish(data)

        return self._call("reduce", opts, tensors, call)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            for tensor in tensors:
                with _Staged(tensor) as data:
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
        _same(output.numel(), own.numel() * self.size(), "allgather: the output's elements")
        if is_plain(output) and is_plain(own) and own.data_ptr() == output.data_ptr() + self.rank() * _bytes(own):
            self._comm.Allgather(MPI.IN_PLACE, as_bytes(output))  # it is in its place: FSDP's way
            return
        with _Staged(output, receive_only=True) as data:
            source = _apart(_sendable(own), data)
            self._comm.Allgather(as_bytes(source), as_bytes(data))

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
        sizes = [_bytes(part) for part in parts]
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        source = _sendable(own)
        self._comm.Allgatherv(as_bytes(source), [as_bytes(data)[0], sizes, None, MPI.BYTE])
        _hand_out(data, parts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            (own,) = map(_sendable, inputs)
            if self.rank() != opts.rootRank:
                self._comm.Gatherv(as_bytes(own), None, opts.rootRank)
                return
            (parts,) = outputs
            sizes = [_bytes(part) for part in parts]
            data = torch.empty(sum(sizes), dtype=torch.uint8)
            self._comm.Gatherv(as_bytes(own), [as_bytes(data)[0], sizes, None, MPI.BYTE], opts.rootRank)
            _hand_out(data, parts)

        return self._call("gather", opts, [t for parts in outputs for t in parts], call)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> MPIWork | None:
        def call() -> None:
            (output,) = outputs
            with _Staged(output, receive_only=True) as data:
                if self.rank() != opts.rootRank:
                    self._comm.Scatterv(None, as_bytes(data), opts.rootRank)
                    return
                (parts,) = inputs
                sizes = [_bytes(part) for part in parts]
                joined = _joined(parts)
                self._comm.Scatterv([as_bytes(joined)[0], sizes, None, MPI.BYTE], as_bytes(data), opts.rootRank)

        return self._call("scatter", opts, outputs, call)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> MPIWork | None:
        return self._call("reduce_scatter", opts, [output], lambda: self._reduce_scatter(output, input, opts.reduceOp))

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            for output, all_parts in zip(outputs, inputs, strict=True):
                self._reduce_scatter(output, all_parts, opts.reduceOp)

        return self._call("reduce_scatter", opts, outputs, call)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> MPIWork | None:
        def call() -> None:
            for output, parts in zip(outputs, inputs, strict=True):
                counts = [part.numel() for part in parts]
                joined = torch.cat([part.reshape(-1) for part in parts])
                self._reduce_scatter(output, joined, opts.reduceOp, counts)

        return self._call("reduce_scatter", opts, outputs, call)

    def _reduce_scatter(
        self, output: Tensor, all_parts: Tensor, operation: Any, counts: list[int] | None = None
    ) -> None:
        reduction = reduction_of(operation, output.dtype, self.size())
        counts = counts or [output.numel()] * self.size()
        _same(all_parts.numel(), sum(counts), "reduce_scatter: the input's elements")
        prepared = reduction.before(all_parts) if reduction.before else all_parts
        with _Staged(output, reduction.dtype, receive_only=True) as data:
            source = _apart(_sendable(prepared.to(reduction.dtype)), data)
            send, receive = as_numbers(source, reduction.datatype), as_numbers(data, reduction.datatype)
            if len(set(counts)) == 1:
                self._comm.Reduce_scatter_block(send, receive, reduction.operation)
            else:
                self._comm.Reduce_scatter(send, receive, counts, reduction.operation)
            reduction.finish(data)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> MPIWork | None:
        def call() -> None:
            with _Staged(output, receive_only=True) as data:
                source = _apart(_sendable(input), data)
                sent, received = (
                    _split_bytes(tensor, splits, self.size())
                    for tensor, splits in ((source, input_splits), (data, output_splits))
                )
                self._comm.Alltoallv(
                    [as_bytes(source)[0], sent, None, MPI.BYTE], [as_bytes(data)[0], received, None, MPI.BYTE]
                )

        return self._call("all_to_all", opts, [output], call)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        def call() -> None:
            source = _joined(inputs)
            received = [_bytes(part) for part in outputs]
            data = torch.empty(sum(received), dtype=torch.uint8)
            self._comm.Alltoallv(
                [as_bytes(source)[0], [_bytes(part) for part in inputs], None, MPI.BYTE],
                [as_bytes(data)[0], received, None, MPI.BYTE],
            )
            _hand_out(data, outputs)

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
            if not _becomes_true(self._comm.Irecv(nothing, 0, tag).Test, limit + _HEAD_START):
                raise dist.DistBackendError(
                    f"monitored_barrier: rank 0 did not say within {limit:.0f} s that all are there"
                )
            return
        deadline, missing = time.monotonic() + limit, []
        arrivals = [(rank, self._comm.Irecv(nothing, rank, tag)) for rank in range(1, self.size())]
        for rank, arrival in arrivals:
            if not _becomes_true(arrival.Test, deadline - time.monotonic()):
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

    def _call(self, what: str, opts: Any, results: list[Tensor], call: Callable[[], object]) -> MPIWork | None:
        limit = seconds_of(opts.timeout, self._timeout)
        if not opts.asyncOp and self._caller.call_now(what, limit, call):
            return None  # which is how torch is told that there is nothing to wait for
        return self._caller.hand_in(MPIWork(what, results, limit), call)

    # Messages: posted at once, so that two ranks may send to each other.

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> MPIWork:
        (tensor,) = tensors
        data = _sendable(tensor)
        request = self._messages.Isend(as_bytes(data), destination, tag)
        return self._track(_Message(f"send to rank {destination}", [tensor], self._timeout, request, data))

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> MPIWork:
        (tensor,) = tensors
        data = tensor if is_plain(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype)
        request = self._messages.Irecv(as_bytes(data), source, tag)
        return self._track(_Message(f"recv from rank {source}", [tensor], self._timeout, request, data, into=tensor))

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> MPIWork:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _track(self, message: _Message) -> _Message:
        with self._tracking:
            others = self._under_way
            self._under_way = [*others, message]
        for other in others:
            other.move_on()
        with self._tracking:
            self._under_way = [other for other in self._under_way if not other.has_left_mpi]
        return message


class _Message(MPIWork):
    """A message on its way; whoever waits for it moves it on."""

    def __init__(
        self,
        what: str,
        results: list[Tensor],
        limit: float,
        request: MPI.Request,
        data: Tensor,
        into: Tensor | None = None,
    ) -> None:
        super().__init__(what, results, limit)
        self._request, self._data, self._into = request, data, into
        self._moving = threading.Lock()  # a request is one thread's at a time
        self.has_left_mpi = False  # until then its memory is MPI's

    def move_on(self) -> bool:
        """Whether MPI is done with it; what was received is then where it belongs."""
        error = None
        with self._moving:
            if self.has_left_mpi:
                return True
            try:
                if not self._request.Test():
                    return False
                if self._into is not None and self._into is not self._data:
                    self._into.detach().copy_(self._data)
            except Exception as raised:  # longer than its buffer, or the other side is gone
                error = raised
            self.has_left_mpi = True
        # Callbacks may come back here, so without the lock.
        if error is None:
            self.succeed()
        else:
            self.fail(error)
        return True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        limit = timeout.total_seconds() if timeout > timedelta(0) else self.limit
        if not _becomes_true(self.move_on, limit):
            raise dist.DistBackendError(f"{self.what} was not done within {limit:.0f} s; is the other side there?")
        if self.error is not None:
            raise self.error
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        if not self.has_left_mpi:
            threading.Thread(target=self._wait_for_future, daemon=True).start()
        return super().get_future()

    def _wait_for_future(self) -> None:
        try:
            self.wait()
        except Exception as error:
            self.fail(error)


def _becomes_true(done: Callable[[], bool], limit: float) -> bool:
    """Whether it does, within so many seconds."""
    deadline, pause = time.monotonic() + limit, 0.0
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause + 2e-6, 1e-3)  # at first at once, later seldom: the other side may need the core
    return True


class _Staged:
    """A tensor as MPI can take it: itself, or a contiguous copy in the memory of the CPU that is copied back."""

    def __init__(
        self,
        tensor: Tensor,
        dtype: torch.dtype | None = None,
        *,
        before: Callable[[Tensor], Tensor] | None = None,
        keep: bool = True,
        receive_only: bool = False,
    ) -> None:
        self._tensor, self._keep = tensor, keep
        dtype = dtype or tensor.dtype
        self._is_own = is_plain(tensor) and dtype == tensor.dtype and before is None and keep
        if self._is_own:
            self._data = tensor.detach() if tensor.requires_grad else tensor
        elif receive_only:
            self._data = torch.empty(tensor.shape, dtype=dtype)
        else:
            prepared = before(tensor) if before else tensor
            self._data = prepared.detach().to("cpu", dtype, copy=True).contiguous().resolve_conj().resolve_neg()

    def __enter__(self) -> Tensor:
        return self._data

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._keep and not self._is_own:
            self._tensor.detach().copy_(self._data)


def _sendable(tensor: Tensor) -> Tensor:
    if is_plain(tensor):
        return tensor
    return tensor.detach().to("cpu").contiguous().resolve_conj().resolve_neg()


def _apart(source: Tensor, target: Tensor) -> Tensor:
    """The source, or a copy where it shares memory with the target, which MPI forbids."""
    start, other = source.data_ptr(), target.data_ptr()
    return source.clone() if start < other + _bytes(target) and other < start + _bytes(source) else source


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([_sendable(part).reshape(-1).view(torch.uint8) for part in parts])


def _hand_out(data: Tensor, parts: Sequence[Tensor]) -> None:
    """Copy consecutive bytes into tensors."""
    start = 0
    for part in parts:
        size = _bytes(part)
        if size:
            part.detach().copy_(data[start : start + size].clone().view(part.dtype).view(part.shape))
        start += size


def _split_bytes(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Bytes per rank; splits count slices of the first dimension, none means equal ones."""
    if not splits:
        _same(tensor.shape[0] % size, 0, f"all_to_all: {tensor.shape[0]} rows ÷ {size} ranks: the rest")
        return [_bytes(tensor) // size] * size
    _same(sum(splits), tensor.shape[0], "all_to_all: the sum of the splits")
    row = _bytes(tensor) // tensor.shape[0] if tensor.shape[0] else 0
    return [split * row for split in splits]


def _same(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise ValueError(f"{what} are {found}, not {wanted}")
