"""Whether all ranks call a sharded model's units in the same order, as each gathers what the others gather at that moment.

Ranks that call different ones would compute with each other's weights, without a word if these have the same size.
"""

from __future__ import annotations

import functools
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from runner.base.errors import RunnerError
from runner.rendezvous.records.topology import ranks_text

_SAME = (
    "let all ranks take the same branch, by numbers that all have (run.common_random), or train by --strategy ddp with "
    "Task(find_unused_parameters=True)"
)


class CallOrder:
    """Compares what the ranks call: on CPUs before each gather; on GPUs once per pass, without a wait for what is computed last."""

    def __init__(self, parts: Iterable[nn.Module], group: dist.ProcessGroup, device: torch.device) -> None:
        """Watch the units in these parts of a model. ``group``: the ranks that share their parameters or gradients."""
        self._group, self._device = group, device
        self._calls: list[str] = []  # since the last exchange
        self._digest = 0
        self._under_way: list[tuple[Tensor, torch.cuda.Event, list[str]]] = []  # exchanges, each with its calls
        if dist.get_world_size(group) == 1:
            return
        for part in parts:
            units = {name: module for name, module in part.named_modules() if _is_unit(name, module)}
            for name, unit in units.items():
                unit.register_forward_pre_hook(functools.partial(self._called, name), prepend=True)
            if isinstance(part, FSDPModule):
                part.register_forward_hook(self._ended)

    def check(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Raise if the ranks have called different units, or have gradients of different ones. Collective.

        On GPUs the gradients are compared in the next call of a method: this one would wait for the backward pass.

        Raises:
            RunnerError: they have; all ranks of the group raise it.
        """
        if dist.get_world_size(self._group) == 1:
            return
        self.compare_pending()
        own = [name for name, parameter in parameters if parameter.grad is not None]
        self._note(f"gradients of {len(own)} parameters, the last of them {own[-1]}" if own else "no gradient", own)
        self._send()

    def compare_pending(self) -> None:
        """Compare what has been exchanged, and not been compared yet. Collective.

        Raises:
            RunnerError: as above.
        """
        for numbers, event, calls in self._under_way:
            event.synchronize()
            self._compare(numbers, calls)
        self._under_way.clear()

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
    def _called(self, name: str, *_: Any) -> None:
        self._note(name)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as above
    def _ended(self, *_: Any) -> None:
        self._note("nothing more")
        self._send()

    def _note(self, name: str, more: object = None) -> None:
        self._calls.append(name)
        self._digest = zlib.crc32(f"{self._digest} {name} {more}".encode())
        if self._device.type != "cuda":
            self._compare(self._exchanged(), self._taken())

    def _send(self) -> None:
        """Exchange the digests on GPUs, to be compared later."""
        if self._device.type == "cuda":
            numbers = torch.empty(2, dtype=torch.int64, pin_memory=True)
            numbers.copy_(self._exchanged(), non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            event.record()
            self._under_way.append((numbers, event, self._taken()))

    def _taken(self) -> list[str]:
        calls, self._calls = self._calls, []
        return calls

    def _exchanged(self) -> Tensor:
        """The largest and the smallest of the ranks' digests; this one negated. Collective."""
        is_cuda = self._device.type == "cuda"  # a copy from other memory than pinned would wait for the device
        own = torch.tensor([self._digest, -self._digest], pin_memory=is_cuda)
        numbers = own.to(self._device, non_blocking=is_cuda)
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._group)
        return numbers

    def _compare(self, numbers: Tensor, calls: list[str]) -> None:
        largest, smallest = numbers.tolist()
        if largest != -smallest:
            raise self._error(calls)

    def _error(self, calls: list[str]) -> RunnerError:
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, calls, group=self._group)
        shortest = min(map(len, everyone))
        place = next(
            (number for number in range(shortest) if len({having[number] for having in everyone}) > 1), shortest - 1
        )
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, having in zip(dist.get_process_group_ranks(self._group), everyone, strict=True):
            ranks[having[place]].append(rank)
        text = ", ".join(f"{name} on {ranks_text(sorted(found))}" for name, found in ranks.items())
        error = RunnerError(f"the ranks call different units of the sharded model: {text}", fix=_SAME)
        error.on_all_ranks = len(everyone) == dist.get_world_size()
        return error


def _is_unit(name: str, module: nn.Module) -> bool:
    """Whether a module gathers parameters at a time of its own. What is left belongs to the whole, which all ranks call."""
    return bool(name) and isinstance(module, FSDPModule) and any(True for _ in module.parameters())
