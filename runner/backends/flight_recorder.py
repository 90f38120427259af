"""The last collective of this rank in each process group, by torch's flight recorder and by backends that it does not know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runner.guard.hang.collectives import Call
from runner.guard.process.lifeline import Lifeline
from runner.torchrun.import_hooks import when_imported
from runner.torchrun.own_modules import own_module
from runner.versions.torch_private import process_groups, recorded_calls

# Each returns the last calls in the groups that it knows, by a group's name.
RECORDERS: list[Callable[[], dict[str, Call]]] = []

_MODULE = "torch.distributed.distributed_c10d"


def answer_when_asked(lifeline: Lifeline, device: str) -> None:
    """Once the program has imported torch.distributed, its guard can learn what it has called last.

    Args:
        device: of this rank, as torch names it.
    """

    def answer() -> None:
        if os.getpid() == lifeline.worker:  # not a child that it has forked
            lifeline.answer_with(lambda: _calls_on(device))

    when_imported(_MODULE, answer)


def _calls_on(device: str) -> list[Call]:
    """``last_calls()`` in a thread of its own: NCCL's recorder asks the device which calls are over."""
    import torch

    devices, own = own_module("runner.backends.gpu"), torch.device(device)
    if devices.current_device().type == own.type:  # else no GPU is used
        with contextlib.suppress(RuntimeError):  # the program has hidden some GPUs from itself
            devices.take_device(own)
    return last_calls()


def last_calls() -> list[Call]:
    """Return one call per process group of this rank; its number is 0 if the rank has called nothing in the group."""
    found = _torchs_calls()
    for calls in RECORDERS:
        found |= {name: call for name, call in calls().items() if call.number}
    return [
        replace(found.get(group["pg_name"], Call(group=group["pg_name"])), title=group["pg_desc"], ranks=group["ranks"])
        for group in process_groups()
    ]


def _torchs_calls() -> dict[str, Call]:
    """Return each group's oldest collective that is not over, else its last one.

    Messages are not shown: gloo's are not recorded, and NCCL's need not be marked as over.
    """
    found: dict[str, Call] = {}
    for entry in recorded_calls():
        group = entry["process_group"][0]
        if not entry["is_p2p"] and (group not in found or found[group].is_over):
            found[group] = Call(
                group=group, number=entry["collective_seq_id"], name=_name(entry), is_over=entry["retired"]
            )
    return found


def _name(entry: dict[str, Any]) -> str:
    """Such as "all_reduce of 4 x 8": the call, and the shape of its first tensor."""
    name: str = entry["profiling_name"].rpartition(":")[2]
    sizes = entry["input_sizes"] or entry["output_sizes"]
    shape = " x ".join(map(str, sizes[0])) if sizes else ""
    return f"{name} of {shape}" if shape else name
