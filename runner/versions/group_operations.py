"""The operations that torch.distributed calls on a process group, by their names in torch 2.14. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple


class GroupOperation(NamedTuple):
    """The arguments of an operation.

    Attributes:
        arguments: the number of arguments before the options.
        options: the class of the options, in torch.distributed's C++ module.
        takes_lists: whether each tensor argument is a list with one entry per device.
    """

    arguments: int
    options: str
    takes_lists: bool = True


OPERATIONS = {
    "allreduce": GroupOperation(1, "AllreduceOptions"),
    "allreduce_coalesced": GroupOperation(1, "AllreduceCoalescedOptions"),
    "broadcast": GroupOperation(1, "BroadcastOptions"),
    "reduce": GroupOperation(1, "ReduceOptions"),
    "allgather": GroupOperation(2, "AllgatherOptions"),
    "allgather_coalesced": GroupOperation(2, "AllgatherOptions"),
    "all_gather_single": GroupOperation(2, "AllgatherOptions", takes_lists=False),
    "all_gather_single_coalesced": GroupOperation(2, "AllgatherOptions"),
    "gather": GroupOperation(2, "GatherOptions"),
    "scatter": GroupOperation(2, "ScatterOptions"),
    "reduce_scatter": GroupOperation(2, "ReduceScatterOptions"),
    "reduce_scatter_single": GroupOperation(2, "ReduceScatterOptions", takes_lists=False),
    "reduce_scatter_single_coalesced": GroupOperation(2, "ReduceScatterOptions"),
    "all_to_all_single": GroupOperation(4, "AllToAllOptions", takes_lists=False),
    "alltoall": GroupOperation(2, "AllToAllOptions", takes_lists=False),
    "barrier": GroupOperation(0, "BarrierOptions"),
}
