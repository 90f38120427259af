"""What this rank has called last in each process group: from torch's flight recorder, and from backends that torch's does not know."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runner.comm.importing import when_imported
from runner.guard.collectives import Call
from runner.guard.nursery import Lifeline

# Each returns the last calls in the groups that it knows, by a group's name.
RECORDERS: list[Callable[[], dict[str, Call]]] = []

_MODULE = "torch.distributed.distributed_c10d"


def answer_when_asked(lifeline: Lifeline) -> None:
    """Once the program has imported torch.distributed, its guard can learn what it has called last."""
    when_imported(_MODULE, lambda: lifeline.answer_with(last_calls))


def last_calls() -> list[Call]:
    """One call for each process group of this rank; in a group in which it has called nothing one with the number 0."""
    found = _torchs_calls()
    for calls in RECORDERS:
        found |= calls()
    groups: list[dict[str, Any]] = sys.modules[_MODULE]._world.pg_config_info
    return [
        replace(found.get(group["pg_name"], Call(group=group["pg_name"])), title=group["pg_desc"], ranks=group["ranks"])
        for group in groups
    ]


def _torchs_calls() -> dict[str, Call]:
    """Of gloo and NCCL: in each group the oldest call that is not over, or else the last collective."""
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return {}
    found: dict[str, Call] = {}
    for entry in json.loads(dump(True)).get("entries", []):  # the oldest first
        group = entry["process_group"][0]
        is_message = entry["is_p2p"]
        if group in found and not found[group].is_over:
            continue
        if entry["retired"] and is_message:
            continue
        found[group] = Call(
            group=group,
            number=0 if is_message else entry["collective_seq_id"],
            name=_name(entry),
            is_over=entry["retired"],
        )
    return found


def _name(entry: dict[str, Any]) -> str:
    """Such as "all_reduce of 4 x 8": the call, and the shape of its first tensor."""
    name: str = entry["profiling_name"].rpartition(":")[2]
    sizes = entry["input_sizes"] or entry["output_sizes"]
    shape = " x ".join(map(str, sizes[0])) if sizes else ""
    return f"{name} of {shape}" if shape else name
