"""torch.distributed over the MPI that started the job: ``init_process_group("mpi4py")``, with stock torch wheels.

A c10d ``Backend`` in Python, which torch allows from 2.14 on; before that, the part of a group in Python that does the work
(``older_group``). Each group has a communicator of its own; one engine per process progresses the calls of all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from mpi4py import MPI
from torch.distributed import DistBackendError

from runner.backends.flight_recorder import RECORDERS
from runner.backends.mpi4py import collectives, messages
from runner.backends.mpi4py.blocking import Blocking
from runner.backends.mpi4py.checks import (
    check_dense,
    check_exchange,
    check_number,
    check_parts,
    check_rank,
    check_tag,
    check_whole,
)
from runner.backends.mpi4py.engine import ProgressEngine
from runner.backends.mpi4py.members import Members
from runner.backends.mpi4py.monitored import MonitoredBarrier, highest_tag_of_messages
from runner.backends.mpi4py.older_group import PlainBackend
from runner.backends.mpi4py.profiling import recorded
from runner.backends.mpi4py.streams import DeviceStreams
from runner.backends.mpi4py.tasks import MPITask, Order, Steps
from runner.backends.mpi4py.types import Reduction, reduction_of
from runner.backends.mpi4py.work import MPIWork, seconds_of
from runner.guard.hang.collectives import Call
from runner.rendezvous.methods.mpi_library import abandoned
from runner.versions.torch_private import Backend, is_profiling, takes_backend_in_python

if TYPE_CHECKING:
    from torch import Tensor

    Base = Backend
else:
    Base = Backend if takes_backend_in_python() else PlainBackend

_LAST_MESSAGES = 10.0  # seconds that open messages get when their group is destroyed


_open: set[MPIBackend] = set()  # a wrapper in C++ (TORCH_DISTRIBUTED_DEBUG=DETAIL) holds no Python object


class MPIBackend(Base):
    """A group's operations. All ranks of a group call its collectives in the same order.

    Args:
        comm: the group's own communicator.
        timeout: seconds that a call may take, unless the call has its own timeout.
        name: the backend's name, as the program and a profiler know it.
        group: the group's name.
    """

    def __init__(
        self, engine: ProgressEngine, comm: MPI.Intracomm, members: Members, timeout: float, name: str, group: str
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self._engine, self._comm, self._members = engine, comm, members
        self._timeout, self._name, self._group = timeout, name, group
        self._mailbox, self._highest_tag = messages.Mailbox(comm), highest_tag_of_messages()
        self._rank, self._ranks = comm.rank, comm.size
        self._order, self._streams = Order(), DeviceStreams()
        self.asked_for = 0  # collectives
        self._blocking = Blocking(engine, self._order, comm)
        self._monitored_barrier = MonitoredBarrier(comm, engine.cores)
        _open.add(self)

    def getBackendName(self) -> str:
        """Return this backend's own name, even if it replaces another backend: torch's C++ treats a backend named gloo as gloo itself."""
        return "mpi4py"

    @property
    def timeout(self) -> timedelta:
        """The group's time limit for a call."""
        return timedelta(seconds=self._timeout)

    @property
    def options(self) -> Backend.Options:
        """The group's time limit and ranks. torch 2.15's flight recorder asks for them."""
        options = Backend.Options(self.getBackendName(), self.timeout)
        options.global_ranks_in_group = list(self._members.ranks)
        return options

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: the number begins at 0 on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        return self.asked_for

    def last_call(self) -> Call:
        """The collective under way, or else the last one."""
        order = self._order
        return Call(group=self._group, number=order.number, name=order.name, is_over=order.under_way is None)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Finish all calls, and free the communicator.

        A collective that is not done after the group's time limit is given up, and its communicator is not freed; MPI can
        be finalised nevertheless (seen with Open MPI 4 and 5, MPICH and Intel MPI). MPI cannot be finalised while there
        are open messages that no rank receives (Open MPI).
        """
        if self not in _open:
            return  # torch shuts a backend down once for each device type
        engine, order = self._engine, self._order
        if order.broken is None and not engine.finish(order.is_idle, self._timeout):
            engine.drop(order, DistBackendError("the group was destroyed before its last collective was done"))
        limit = min(self._timeout, _LAST_MESSAGES)
        has_messages = not engine.finish(lambda: not engine.has_messages(self._members), limit)
        self._members.leave(order.number - (order.broken is not None))  # if broken, the last one was given up
        _open.discard(self)
        if has_messages:
            abandoned.set()
        if has_messages or not order.is_idle() or order.broken is not None or MPI.Is_finalized():
            return
        self._blocking.free()
        self._comm.Free()

    # Collectives. Each is called by torch with the tensors and its options.

    def allreduce(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        reductions = self._reductions(opts, tensors)
        if all(tensor.is_sparse for tensor in tensors):
            steps = collectives.sparse_allreduce(self._comm, tensors, reductions)
            return self._call("sparse_all_reduce", opts, tensors, tensors, steps)
        check_dense("all_reduce", tensors)
        steps = collectives.allreduce(self._comm, self._blocking, tensors, reductions)
        return self._call("all_reduce", opts, tensors, tensors, steps)

    allreduce_coalesced = allreduce_sparse = allreduce

    def _reductions(self, opts: Any, tensors: Sequence[Tensor]) -> list[Reduction]:
        """Each tensor's reduction; made in the caller's thread, so that an undefined one raises before anything is sent.

        Raises:
            TypeError: the operation is not defined for a tensor's dtype.
        """
        operation = opts.reduceOp
        return [reduction_of(operation, tensor.dtype, self._ranks) for tensor in tensors]

    def reduce(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        (tensor,) = tensors
        (reduction,) = self._reductions(opts, tensors)
        check_dense("reduce", tensors)
        check_rank("reduce", opts.rootRank, self._ranks)
        steps = collectives.reduce(self._comm, tensor, reduction, opts.rootRank)
        return self._call("reduce", opts, tensors, tensors, steps)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> MPIWork | None:
        check_dense("broadcast", tensors)
        check_rank("broadcast", opts.rootRank, self._ranks)
        steps = collectives.broadcast(self._comm, tensors, opts.rootRank)
        return self._call("broadcast", opts, tensors, tensors, steps)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> MPIWork | None:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        for output, own in zip(outputs, inputs, strict=True):
            check_whole("all_gather", "output", output, own, self._ranks)
        steps = collectives.all_gather_single(self._comm, self._blocking, outputs, inputs)
        return self._call("all_gather", opts, inputs, outputs, steps)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        for parts, own in zip(outputs, inputs, strict=True):
            check_parts("all_gather", "output", parts, own, self._rank, self._ranks)
        steps = collectives.allgather(self._comm, outputs, inputs)
        return self._call("all_gather", opts, inputs, _flat(outputs), steps)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        check_number("all_gather", "lists of outputs", len(outputs), self._ranks)
        for of_rank in outputs:
            check_number("all_gather", "outputs for a rank", len(of_rank), len(inputs))
        by_tensor = [list(of_ranks) for of_ranks in zip(*outputs, strict=True)]
        return self.allgather(by_tensor, inputs, opts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        (own,) = inputs
        check_rank("gather", opts.rootRank, self._ranks)
        check_dense("gather", inputs)
        if self._rank == opts.rootRank:
            (parts,) = outputs
            check_parts("gather", "output", parts, own, self._rank, self._ranks, even=True)
        steps = collectives.gather(self._comm, outputs, own, opts.rootRank)
        return self._call("gather", opts, inputs, _flat(outputs), steps)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> MPIWork | None:
        (output,) = outputs
        check_rank("scatter", opts.rootRank, self._ranks)
        check_dense("scatter", outputs)
        if self._rank == opts.rootRank:
            (parts,) = inputs
            check_parts("scatter", "input", parts, output, self._rank, self._ranks, even=True)
        steps = collectives.scatter(self._comm, output, inputs, opts.rootRank)
        return self._call("scatter", opts, _flat(inputs) or outputs, outputs, steps)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> MPIWork | None:
        for output, parts in zip(outputs, inputs, strict=True):
            check_parts("reduce_scatter", "input", parts, output, self._rank, self._ranks)
        steps = collectives.reduce_scatter(self._comm, outputs, inputs, self._reductions(opts, outputs))
        return self._call("reduce_scatter", opts, _flat(inputs), outputs, steps)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> MPIWork | None:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        for output, whole in zip(outputs, inputs, strict=True):
            check_whole("reduce_scatter", "input", whole, output, self._ranks)
        steps = collectives.reduce_scatter_single(self._comm, outputs, inputs, self._reductions(opts, outputs))
        return self._call("reduce_scatter", opts, inputs, outputs, steps)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> MPIWork | None:
        check_exchange(output, input, output_splits, input_splits, self._rank, self._ranks)
        steps = collectives.all_to_all_single(self._comm, output, input, output_splits, input_splits)
        return self._call("all_to_all", opts, [input], [output], steps)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> MPIWork | None:
        check_number("all_to_all", "inputs", len(inputs), self._ranks)
        check_parts("all_to_all", "output", outputs, inputs[self._rank], self._rank, self._ranks)
        check_parts("all_to_all", "input", inputs, outputs[self._rank], self._rank, self._ranks)
        steps = collectives.alltoall(self._comm, outputs, inputs)
        return self._call("all_to_all", opts, inputs, outputs, steps)

    def barrier(self, opts: Any) -> MPIWork | None:
        return self._call("barrier", opts, [], [], collectives.barrier(self._comm))

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool) -> None:
        self._monitored_barrier(max(0.0, opts.timeout.total_seconds()), all_ranks=wait_all_ranks)

    def _call(
        self, what: str, opts: Any, inputs: Sequence[Tensor], results: Sequence[Tensor], steps: Steps
    ) -> MPIWork | None:
        self.asked_for += 1
        if inputs and not inputs[0].is_cpu:
            steps = self._streams.after_what_is_queued(inputs[0], steps)
        if results and results[0].is_inference():
            steps = _in_inference_mode(steps)
        if is_profiling():
            steps = recorded(f"{self._name}:{what}", inputs, steps)
        task = MPITask(what, steps, seconds_of(opts.timeout, self._timeout), self._members, self._order)
        if opts.asyncOp:
            self._engine.begin(task)
            self._engine.carry_on_later()
            return MPIWork(self._engine, task, results)
        self._engine.begin(task, is_awaited=True)
        self._engine.wait(task)
        return None  # this tells torch that there is nothing to wait for

    # Messages.

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> MPIWork:
        (tensor,) = tensors
        self._check_message("send", tensor, destination, tag)
        steps = messages.send(self._comm, tensor, destination, tag)
        return self._message("send", f"send to rank {destination}", tensor, steps, destination)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> MPIWork:
        (tensor,) = tensors
        self._check_message("recv", tensor, source, tag)
        steps = messages.receive(self._mailbox.expect(source, tag), tensor)
        return self._message("recv", f"recv from rank {source}", tensor, steps, source)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> MPIWork:
        (tensor,) = tensors
        self._check_message("recv", tensor, 0, tag)
        arrival = self._mailbox.expect(MPI.ANY_SOURCE, tag)
        steps = messages.receive(arrival, tensor)
        return self._message("recvAnySource", "recv from any rank", tensor, steps, -1, lambda: arrival.status.source)

    def _check_message(self, call: str, tensor: Tensor, peer: int, tag: int) -> None:
        check_dense(call, [tensor])
        check_rank(call, peer, self._ranks)
        check_tag(call, tag, self._highest_tag)

    def _message(
        self, name: str, what: str, tensor: Tensor, steps: Steps, peer: int, sender: Callable[[], int] | None = None
    ) -> MPIWork:
        if not tensor.is_cpu:
            steps = self._streams.after_what_is_queued(tensor, steps, at_once=True)
        if tensor.is_inference():
            steps = _in_inference_mode(steps)
        if is_profiling():
            steps = recorded(f"{self._name}:{name}", [tensor], steps)
        task = MPITask(what, steps, self._timeout, self._members, peer=peer)
        self._engine.begin(task)
        self._engine.carry_on_later()
        return MPIWork(self._engine, task, [tensor], sender)


# torch's C++ looks up what a backend supports, and its options, in Python. Where it finds its own property there, which asks C++,
# it recurses until the stack is full: MPIBackend.options, and these, which each version of torch has more of.
for _name, _value in vars(Backend).items():
    if isinstance(_value, property) and _name.lstrip("_").startswith("supports_"):
        setattr(MPIBackend, _name, False)


def _last_calls() -> dict[str, Call]:
    calls = [backend.last_call() for backend in [*_open]]
    return {call.group: call for call in calls}


RECORDERS.append(_last_calls)


def open_groups() -> int:
    """The number of this process's groups that have not been destroyed."""
    return len(_open)


def _flat(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [tensor for one in lists for tensor in one]


def _in_inference_mode(steps: Steps) -> Steps:
    """The steps, run in inference mode in whatever thread, as inference tensors need it."""
    while True:
        with torch.inference_mode():
            try:
                request = next(steps)
            except StopIteration:
                return
        yield request
