"""The degrees of parallelism, and which rank has which shard of the model and the data. Does not import torch at load.

The degrees are those of torchtitan and of PyTorch's device mesh: ``replicate × shard × pipeline × tensor`` is the number of
ranks. Tensor-parallel ranks communicate in every layer, and pipeline stages communicate least. So the tensor dimension stays
within a host, and the pipeline dimension goes across hosts. Which ranks share a host is measured (Topology), because ranks
may be mapped cyclically or unevenly.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.rendezvous.records.topology import Topology
from runner.versions.features import need
from runner.versions.torch_api import in_order
from runner.versions.torch_private import flatten

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """The degree of each kind of parallelism.

    Attributes:
        replicate: replicas of the model (each on one rank or on a group of ranks).
        shard: ranks among which the parameters of a replica are sharded (FSDP, ZeRO).
        pipeline: pipeline stages.
        tensor: ranks among which each layer is sharded.
    """

    replicate: int = 1
    shard: int = 1
    pipeline: int = 1
    tensor: int = 1

    @classmethod
    @raised_on_all_ranks()
    def of(cls, ranks: int, *, rest: Literal["replicate", "shard"] = "replicate", **degrees: int) -> Degrees:
        """The given degrees, multiplied in one dimension, ``rest``, by what they leave of the ranks.

        Raises:
            UsageError: the product of the given degrees does not divide the number of ranks.
        """
        given = asdict(cls(**degrees))
        product = math.prod(given.values())
        times, left = divmod(ranks, product)
        if left:
            arithmetic = " × ".join(f"{name}({number})" for name, number in given.items() if number > 1)
            fitting = sorted({product * max(1, times), product * (times + 1)})
            raise UsageError(
                f"{arithmetic} = {product} does not divide {ranks} ranks ({ranks} = {product} × {times} + {left})",
                fix=f"start {' or '.join(map(str, fitting))}, or take smaller degrees",
            )
        return cls(**given | {rest: given[rest] * times})

    @property
    def data(self) -> int:
        """The number of shares into which each global batch is divided."""
        return self.replicate * self.shard


@dataclass(frozen=True)
class Layout:
    """The ranks in mesh order: pipeline, replicate, shard, tensor; the last varies fastest."""

    degrees: Degrees
    ranks: tuple[int, ...]

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {rank: position for position, rank in enumerate(self.ranks)}

    def data_rank(self, rank: int) -> int:
        """The index of a rank's share of the samples, from 0 to ``degrees.data`` - 1."""
        return self._positions[rank] // self.degrees.tensor % self.degrees.data

    def place(self, rank: int) -> dict[str, int]:
        """A rank's index in each dimension of the degrees, from 0."""
        rest, place = self._positions[rank], {}
        for name in ("tensor", "shard", "replicate", "pipeline"):
            rest, place[name] = divmod(rest, getattr(self.degrees, name))
        return place

    @property
    def dimensions(self) -> dict[str, int]:
        """The dimensions of torch's mesh and their sizes."""
        degrees = self.degrees
        is_hybrid = degrees.replicate > 1 and math.prod((degrees.shard, degrees.pipeline, degrees.tensor)) > 1
        data = {"replicate": degrees.replicate, "shard": degrees.shard} if is_hybrid else {"data": degrees.data}
        ends = {"pipeline": degrees.pipeline}, {"tensor": degrees.tensor}
        first, last = ({name: size for name, size in end.items() if size > 1} for end in ends)
        return first | data | last

    def groups(self, dimension: str) -> list[list[int]]:
        """The ranks that differ in one dimension only, in mesh order."""
        sizes = self.dimensions
        names = list(sizes)
        stride = math.prod(sizes[name] for name in names[names.index(dimension) + 1 :])
        starts = [start for start in range(len(self.ranks)) if start // stride % sizes[dimension] == 0]
        return [[self.ranks[start + stride * step] for step in range(sizes[dimension])] for start in starts]

    @property
    def is_ascending(self) -> bool:
        """Whether ranks ascend along each dimension.

        torch's groups are of ascending ranks. Where the mesh is not, DTensor takes one rank's shard for another's, without a
        word (torch 2.14).
        """
        return all(group == sorted(group) for dimension in self.dimensions for group in self.groups(dimension))


@raised_on_all_ranks()
def lay_out(topology: Topology, degrees: Degrees) -> Layout:
    """Place the ranks in the mesh, so that each tensor-parallel group is on one host.

    So is each group of shards, and each pipeline stage with its replicas, where their number divides that of every host's ranks,
    and these are mapped by blocks or in turn. With data parallelism only, the data rank equals the rank.

    Raises:
        UsageError: a tensor-parallel group would be split across hosts. (A group that fills several whole hosts is accepted.)
    """
    assert math.prod(astuple(degrees)) == topology.size
    if degrees.tensor == degrees.pipeline == degrees.shard == 1:
        return Layout(degrees, tuple(range(topology.size)))
    sizes = [len(host.ranks) for host in topology.hosts]
    within_hosts = all(size % degrees.tensor == 0 for size in sizes)
    of_whole_hosts = len(set(sizes)) == 1 and degrees.tensor % sizes[0] == 0
    if not within_hosts and not of_whole_hosts:
        odd = next(host for host in topology.hosts if len(host.ranks) % degrees.tensor)
        raise UsageError(
            f"tensor({degrees.tensor}) does not divide the {len(odd.ranks)} ranks of host {odd.name}, so that a layer would "
            "be shared across hosts",
            fix=f"start a multiple of {degrees.tensor} ranks on each host",
        )
    by_host = [rank for host in topology.hosts for rank in sorted(host.ranks)]
    groups = [sorted(block) for block in _blocks(by_host, degrees.tensor)]
    # By host is best: neighbours in the mesh are near. The ranks of a host need not be consecutive numbers, though: then what
    # is sharded stays near, from the largest part that can: a stage with its replicas, a replica's shards, a shard's parts.
    block_sizes = len(groups), degrees.data, degrees.shard, 1  # in tensor groups
    layouts = [
        Layout(degrees, tuple(rank for block in sorted(_blocks(groups, size)) for group in block for rank in group))
        for size in block_sizes
    ]
    return next((layout for layout in layouts if layout.is_ascending), layouts[0])


def _blocks(items: list[_Item], size: int) -> list[list[_Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def device_mesh(layout: Layout, device_type: str, backend: str | None = None) -> DeviceMesh:
    """The layout as torch's DeviceMesh. Collective.

    It has the dimension ``data``, and ``pipeline`` and ``tensor`` if their degree is above 1. With replicas of something that
    is sharded, ``data`` is flattened from the dimensions ``replicate`` and ``shard``, which fully_shard takes.
    ``backend``: of the dimensions' groups; None: the default group's.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    if not layout.is_ascending:
        need("order", device=device_type)
    dimensions = layout.dimensions
    ranks = torch.tensor(layout.ranks, dtype=torch.int).reshape(tuple(dimensions.values()))
    if layout.is_ascending and backend is None:
        mesh = DeviceMesh(device_type, ranks, mesh_dim_names=tuple(dimensions))
    else:
        groups = [_group_of(layout.groups(dimension), backend) for dimension in dimensions]
        mesh = DeviceMesh.from_group(groups, device_type, ranks, mesh_dim_names=tuple(dimensions))
    if "replicate" in dimensions:
        flatten(mesh["replicate", "shard"], "data")
        # torch 2.13 and 2.14 warn at each mesh["data"], and have no public function that divides a dimension.
        warnings.filterwarnings("ignore", message="Slicing a flattened dim from root mesh")
    return mesh


def _group_of(groups: list[list[int]], backend: str | None) -> ProcessGroup:
    """Make process groups whose ranks are in this order; returns this rank's. Collective."""
    import torch.distributed as dist

    made: list[Any] = [dist.new_group(backend=backend, **in_order(ranks)) for ranks in groups]
    own: ProcessGroup = next(group for group, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks)
    return own


def degree(mesh: DeviceMesh, dimension: str) -> int:
    """The size of a dimension of the mesh; 1 if it has none of this name."""
    return int(mesh[dimension].size()) if dimension in (mesh.mesh_dim_names or ()) else 1
