"""A step of an MLP of four blocks, sharded by FSDP2 and by tensor parallelism, over gloo and mpi4py in turn.

mpirun -np 2 python -m runner tests.campaigns.speed.sharded [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from runner.training.run import Run
from tests.campaigns.speed.spread import ratios, spread

WIDTH, HIDDEN, BLOCKS, BATCH = 512, 2048, 4, 32
STEPS = 5  # in a turn
BACKENDS = ("gloo", "mpi4py")


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(BLOCKS))
    )


def by_fsdp(mesh: DeviceMesh) -> nn.Module:
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_tensor_parallelism(mesh: DeviceMesh) -> nn.Module:
    plan = {
        f"{n}.{layer}": style() for n in range(BLOCKS) for layer, style in ((0, ColwiseParallel), (2, RowwiseParallel))
    }
    return parallelize_module(blocks(), mesh, plan)


def stepper(model: nn.Module, inputs: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found = {}
    for what, split in (("FSDP2", by_fsdp), ("tensor parallel", by_tensor_parallelism)):
        steps = {}
        for name, group in groups.items():
            # DTensor takes meshes that are alike for one, and would send all by the first one's group.
            mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=(f"shard_{name}",))
            steps[name] = stepper(split(mesh), torch.randn(BATCH, WIDTH))
            steps[name]()
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(given.rounds):
            for name, step in steps.items():
                dist.barrier()
                start = time.perf_counter()
                for _ in range(STEPS):
                    step()
                slowest = torch.tensor([(time.perf_counter() - start) / STEPS], dtype=torch.float64)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                seconds[name].append(slowest.item())
        gloo, mpi4py = (f"{1e3 * statistics.median(seconds[name]):.1f} ms" for name in BACKENDS)
        found[what] = statistics.median(own := ratios(seconds["gloo"], seconds["mpi4py"]))
        run.print(f"{what:16} gloo {gloo}, mpi4py {mpi4py} per step, ratio {spread(own, 2)}")
    if run.is_main and given.json:
        given.json.write_text(json.dumps(found))
