"""Whether the replicas of a model are equal: they are by construction, unless memory, a network or a program is at fault."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.trainer import Trainer
from runner.rendezvous.topology import ranks_text
from runner.training.run import Run

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_PIECE = 1 << 20  # elements
# 2⁶⁴ ÷ the golden ratio, odd, as a signed number: multiples of it by consecutive places are far from each other.
_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)

_Part = tuple[str, tuple[tuple[str, int], ...]]  # a parameter's name, and where this is in it, by dimension of the mesh


class Replicas:
    """Which ranks have the same part of a parameter, and whether it is the same there.

    With ddp, zero1 and horovod each rank has all parameters. With a sharded model only its copies (``--replicate``) have the same
    parts, and with ``--tp`` and ``--pp`` what is not divided, and each part in as many data-parallel ranks as have it.
    """

    @raised_on_all_ranks()
    def __init__(self, run: Run, trainer: Trainer) -> None:
        """Find who has what. Collective.

        Raises:
            UsageError: no part of a parameter is on two ranks, or what is differs between the steps.
        """
        if trainer.period > 1:
            raise UsageError(
                f"--check-replicas: the ranks' parameters differ here, but for one step in {trainer.period}",
                fix="leave it out, or take --strategy ddp",
            )
        self._run, self._model = run, trainer.model
        own = [_part(trainer.copies.get(name, name), parameter) for name, parameter in self._model.named_parameters()]
        everyone: list[Any] = [None] * run.size
        dist.all_gather_object(everyone, own)
        self._most = max(map(len, everyone))
        self._places: dict[_Part, dict[int, int]] = defaultdict(dict)  # by rank: which of its parameters that is
        for rank, parts in enumerate(everyone):
            for index, part in enumerate(parts):
                self._places[part][rank] = index
        if all(len(places) == 1 for places in self._places.values()):
            raise UsageError(
                "--check-replicas: no two ranks have the same part of the model here",
                fix="leave it out, or take --replicate 2 or --strategy ddp",
            )

    @raised_on_all_ranks()
    @torch.no_grad()
    def check(self, step: int) -> None:
        """Compare digests of what is on several ranks. Collective.

        Raises:
            RunnerError: a parameter differs; all ranks raise it. It names the ranks that most others differ from.
        """
        own = torch.zeros(self._most, dtype=torch.int64, device=self._run.device)
        for index, parameter in enumerate(self._model.parameters()):
            own[index] = digest_of(_local(parameter))
        everyone = [torch.empty_like(own) for _ in range(self._run.size)]
        dist.all_gather(everyone, own)
        digests = [digests.tolist() for digests in everyone]
        found = {part: {rank: digests[rank][index] for rank, index in at.items()} for part, at in self._places.items()}
        differing = {part: values for part, values in found.items() if len(set(values.values())) > 1}
        if differing:
            (name, _), values = next(iter(differing.items()))
            odd = _minority(values)
            hosts = ", ".join(dict.fromkeys(self._run.job.topology.records[rank].host for rank in odd))
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            raise RunnerError(
                f"--check-replicas: {name}{more} differs on {ranks_text(odd)} ({hosts}) after step {step}",
                fix="go on from an earlier checkpoint; the same host again: have its memory tested",
            )


def _part(name: str, parameter: Any) -> _Part:
    """What a rank has of a parameter; ranks that have the same have equal ones."""
    if not hasattr(parameter, "placements"):
        return name, ()
    mesh = parameter.device_mesh
    at = zip(mesh.mesh_dim_names, mesh.get_coordinate(), parameter.placements, strict=True)
    return name, tuple((dimension, index) for dimension, index, placement in at if not placement.is_replicate())


def _local(parameter: Tensor) -> Tensor:
    local: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local


def _minority(values: dict[int, int]) -> list[int]:
    """The ranks whose value most others do not have; all of them where no majority tells who is right."""
    counts = list(values.values())
    usual = max(counts, key=counts.count)
    odd = [rank for rank, value in values.items() if value != usual]
    return odd if 2 * len(odd) < len(values) else list(values)


def digest_of(parameter: Tensor) -> Tensor:
    """The sum of a tensor's elements as whole numbers, each times an odd number that depends on its place, modulo 2⁶⁴.

    It changes with every single element, and when two change places.
    """
    whole = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    numbers = whole.contiguous().reshape(-1).view(_INTEGERS[whole.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=numbers.device)
    for start in range(0, numbers.numel(), _PIECE):  # the whole, in eight bytes per element, may not fit
        piece = numbers[start : start + _PIECE].to(torch.int64)
        places = torch.arange(start, start + piece.numel(), device=piece.device)
        total += (piece * (2 * places * _MIXER + 1)).sum()
    return total
