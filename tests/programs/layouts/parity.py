"""A workload that trains by a strategy, and the same model whole on every rank, and prints by how much they differ."""

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from deviations import largest
from torch import Tensor, nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.utils.data import TensorDataset

try:
    from torch.distributed.tensor import Replicate, Shard
except ImportError:  # torch 2.4
    from torch.distributed._tensor import Replicate, Shard

from runner.base.settings import as_words, option
from runner.parallel import Setting, make_trainer
from runner.parallel.mesh import Layout
from runner.parallel.precision import named
from runner.parallel.state import full_tensor
from runner.parallel.task import Plan, Task
from runner.training.data.orders import Permutation
from runner.training.run import Run
from runner.training.settings import StepSettings

WIDTH, SAMPLES, LENGTH, CLASSES = 8, 1024, 4, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.down(nn.functional.gelu(self.up(self.norm(values))))


class Net(nn.Module):
    """A chain of small layers over a sequence."""

    def __init__(self, *, is_tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(8))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, values: Tensor) -> Tensor:
        values = self.embed(values)
        for layer in self.layers:
            values = layer(values)
        outputs: Tensor = self.head(values)
        return outputs


def plan(*, loss: bool = False, tied: bool = False) -> Plan:
    """Where the model is sharded; with its outputs sharded by classes or not, and embedding and head alike or not at all."""
    tensor: dict[str, ParallelStyle] = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
    sequence: dict[str, ParallelStyle] = {
        "embed": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
        "layers.*.norm": SequenceParallel(),
        "layers.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    if tied:
        tensor["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
        tensor["head"] = ColwiseParallel(output_layouts=Replicate())
    if loss:
        tensor["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        sequence["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    units = ("layers.*", "head")
    return Plan(shard=units, tensor=tensor, sequence=sequence, pipeline=units, outputs="head")


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@dataclass(frozen=True, kw_only=True)
class Options(StepSettings):
    """Of this workload."""

    meta: bool = option(False, "the task has a factory")
    tied: bool = option(False, "embedding and output have one weight")
    frozen: bool = option(False, "some weights are not trained")
    only_head: bool = option(False, "the other weights are not")
    order: str | None = option(None, "of the ranks in the mesh")
    sgd: bool = option(False, "the optimizer is linear in the gradient")
    steps: int = 10


def main(run: Run, options: Options) -> None:
    if options.order:  # as some mappings of ranks to hosts ask for
        run = replace(run, layout=Layout(run.layout.degrees, tuple(map(int, options.order.split(",")))))
    dtype = named(options.dtype)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, CLASSES, (SAMPLES, LENGTH + 1), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def make() -> nn.Module:
        net = Net(is_tied=options.tied)
        for name, parameter in net.named_parameters():
            is_frozen = options.frozen and name.startswith(("layers.0", "layers.5.up"))
            parameter.requires_grad_(not is_frozen and (not options.only_head or name.startswith("head")))
        return net

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if options.sgd:
            return torch.optim.SGD(parameters, lr=1e-2)
        # With torch's eps of 1e-8 the rounding of very small gradients counts as much as that of large ones: docs/train/parallelism.md.
        has_small_gradients = options.tp > 1 and options.clip_norm is not None
        return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-5 if has_small_gradients else 1e-8)

    torch.manual_seed(0)
    model: nn.Module | Callable[[], nn.Module] = make if options.meta else make()
    task = Task(
        model=model,
        loss=loss_of,
        optimizer=optimizer,
        train_data=TensorDataset(inputs, targets),
        plan=plan(loss=options.loss_parallel, tied=options.tied and CLASSES % options.tp == 0),
    )
    whole = copy.deepcopy(task).build(run.device, dtype)
    bare = optimizer(whole.parameters())
    setting = Setting(device=run.device, dtype=dtype, mesh=run.mesh, options=options)
    trainer = make_trainer(task, setting)
    everyones = Permutation(SAMPLES, "seed 0 epoch 0").at(numpy.arange(SAMPLES)).tolist()
    own = everyones[run.data_rank : SAMPLES // run.data_size * run.data_size : run.data_size]
    found: dict[str, float] = {"loss": 0.0, "weights": 0.0}
    for step in range(options.steps):
        mine = _nth(own, step, options.batch_size)
        (total,) = run.sum(trainer.step((inputs[mine], targets[mine])).item())
        batch = _nth(everyones, step, options.batch_size * run.data_size)
        bare.zero_grad()
        loss = loss_of(whole(inputs[batch]), targets[batch])
        torch.autograd.backward(loss)
        if options.clip_norm is not None:
            nn.utils.clip_grad_norm_(whole.parameters(), options.clip_norm)
        bare.step()
        found["loss"] = largest([found["loss"], abs(total / run.data_size / loss.item() - 1)])
    weights = dict(whole.named_parameters())
    trainer.share_buffers()
    for name, parameter in trainer.model.named_parameters():
        of_first = weights[trainer.copies.get(name, name)]
        found["weights"] = largest([found["weights"], _difference(full_tensor(parameter.detach()), of_first)])
    with torch.no_grad():
        found["outputs"] = _difference(trainer.outputs(inputs[:7]), whole(inputs[:7]))
    found["parameters"] = sum(_own(parameter).numel() for parameter in trainer.model.parameters())
    everyone: list[Any] = [None] * run.size
    torch.distributed.all_gather_object(everyone, found)
    worst = {key: largest(one[key] for one in everyone) for key in found}
    worst["parameters_of_all"] = sum(one["parameters"] for one in everyone)
    run.print("parity " + json.dumps({"arguments": " ".join(as_words(Options, options.given)), **worst}))


def _nth(order: list[int], number: int, size: int) -> list[int]:
    return order[number * size : (number + 1) * size]


def _difference(one: Tensor, other: Tensor) -> float:
    scale = other.abs().max().clamp(min=1e-12)  # a frozen bias is zero
    return ((one - other).abs().max() / scale).item()


def _own(parameter: Tensor) -> Tensor:
    local: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local
