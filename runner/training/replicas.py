"""Whether the replicas of a model are equal: they are by construction, unless memory, a network or a program is at fault."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from runner.backends.comparing import bounds, number_of
from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.same_start import digest_of
from runner.parallel.state import local_tensor
from runner.parallel.trainer import Trainer
from runner.rendezvous.records.topology import ranks_text
from runner.training.run import Run


class _Shard(NamedTuple):
    """A rank's part of a parameter. Shards that are equal in this are equal in their values, too."""

    name: str
    tensor: int  # the rank's index among the tensor-parallel ones: these do not exchange the gradients of what they all have
    # The mesh's dimensions that shard it, the index there, and how they do.
    placements: tuple[tuple[str, int, str], ...]


class Replicas:
    """A comparison of the parameters' shards among the ranks that have the same shard.

    Under ddp, zero1 and horovod each rank has all parameters. Of a sharded model the replicas (``--replicate``) have the same shards, and
    with ``--tp`` and ``--pp`` data-parallel ranks the same layers or shards of them. Two stages may have a tied parameter.
    """

    @raised_on_all_ranks()
    def __init__(self, run: Run, trainer: Trainer) -> None:
        """Find who has what. Collective.

        Raises:
            UsageError: the ranks' parameters are not equal after each step.
        """
        if trainer.period > 1:
            raise UsageError(
                f"--check-replicas: the replicas are equal only every {trainer.period} steps",
                fix="drop --check-replicas, or take --strategy ddp",
            )
        self._run, self._model = run, trainer.model
        tensor = run.layout.place(run.rank)["tensor"]
        own = [
            _Shard(trainer.copies.get(name, name), tensor, _placements(parameter))
            for name, parameter in self._model.named_parameters()
        ]
        self._shards = [own] * run.size
        ((smallest, largest),) = bounds([number_of(repr(own))])
        # If each rank has what all have, one reduction compares it, however many there are.
        self._is_one = smallest == largest
        if not self._is_one:
            dist.all_gather_object(self._shards, own)
        self._most = max(map(len, self._shards))
        if self._is_one:
            return
        # By place in the ranks' digests, one after the other: the first place that has the same shard.
        first: dict[_Shard, int] = {}
        self._first = torch.arange(run.size * self._most)
        for rank, shards in enumerate(self._shards):
            for place, shard in enumerate(shards, start=rank * self._most):
                self._first[place] = first.setdefault(shard, place)
        if len(first) == sum(map(len, self._shards)):
            run.print("--check-replicas: no two ranks have the same part of the model here, so nothing is compared")

    @raised_on_all_ranks()
    @torch.no_grad()
    def check(self, step: int) -> None:
        """Compare digests of what several ranks have. Collective.

        Raises:
            RunnerError: a parameter differs; all ranks raise it. It names the ranks that most others differ from.
        """
        own = torch.zeros(self._most, dtype=torch.int64, device=self._run.device)
        for index, parameter in enumerate(self._model.parameters()):
            own[index] = digest_of(local_tensor(parameter))
        if self._is_one and all(smallest == largest for smallest, largest in bounds(own.tolist())):
            return
        everyone = [torch.empty_like(own) for _ in range(self._run.size)]
        dist.all_gather(everyone, own)
        digests = torch.cat(everyone).cpu()
        if self._is_one or not torch.equal(digests, digests[self._first]):
            raise self._error(digests.tolist(), step)

    def _error(self, digests: list[int], step: int) -> RunnerError:
        found: dict[_Shard, list[tuple[int, int]]] = defaultdict(list)  # ranks and digests
        for rank, shards in enumerate(self._shards):
            for place, shard in enumerate(shards, start=rank * self._most):
                found[shard].append((rank, digests[place]))
        odd: dict[str, set[int]] = defaultdict(set)  # by parameter
        for shard, values in found.items():
            if len({digest for _, digest in values}) > 1:
                odd[shard.name].update(_minority(values))
        name, ranks = next(iter(odd.items()))
        hosts = ", ".join(dict.fromkeys(self._run.job.topology.records[rank].host for rank in sorted(ranks)))
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        return RunnerError(
            f"--check-replicas: {name}{more} differs on {ranks_text(sorted(ranks))} ({hosts}) after step {step}",
            fix="resume from an earlier checkpoint; if the same host fails again, test its memory",
        )


def _placements(parameter: Any) -> tuple[tuple[str, int, str], ...]:
    """Return the dimensions that shard a parameter, with this rank's index and placement; empty if the rank has all of it."""
    if not hasattr(parameter, "placements"):
        return ()
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or map(str, range(mesh.ndim))
    dimensions = zip(names, mesh.get_coordinate(), parameter.placements, strict=True)
    return tuple((name, index, str(placement)) for name, index, placement in dimensions if not placement.is_replicate())


def _minority(values: list[tuple[int, int]]) -> list[int]:
    """The ranks whose digest most others do not have; all of them where no majority tells who is right."""
    digests = [digest for _, digest in values]
    usual = max(digests, key=digests.count)
    odd = [rank for rank, digest in values if digest != usual]
    return odd if 2 * len(odd) < len(values) else [rank for rank, _ in values]
