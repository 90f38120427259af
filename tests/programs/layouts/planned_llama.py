"""A workload of a Llama, to plan for and to train.

Several trainings of one step run in turn in one job, each with the options of one argument: ``planned_llama '--tp 2' '--pp 2'``.
Then the bytes that each rank has are printed, with its place in the pipeline.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.options.command import given_in
from runner.parallel import make_trainer
from runner.parallel.mesh import lay_out
from runner.parallel.task import Plan, Task
from runner.training.run import Run
from runner.training.settings import StepSettings
from runner.training.workload import call
from workloads.models.llama import SIZES, Llama

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}
PLAN = Plan(
    shard=("model.layers.*", "lm_head"),
    tensor={
        **{f"model.layers.*.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "model.layers.*.self_attn.o_proj": RowwiseParallel(),
        **{f"model.layers.*.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
        "model.layers.*.mlp.down_proj": RowwiseParallel(),
    },
    pipeline=("model.layers.*", "model.norm", "lm_head"),
)


def main(run: Run, argv: list[str]) -> None:
    if run.train_by is not None:
        call(_train, run, argv)
        return
    for options in argv:
        layout = lay_out(run.job.topology, given_in(options.split()).parallel().degrees(run.size))
        call(_train, replace(run, layout=layout, workload=options), options.split())


@dataclass(frozen=True, kw_only=True)
class Options(StepSettings):
    """Of one training."""

    size: str = option("debug", choices=tuple(SIZES))
    length: int = 32
    optimizer: str = option("adamw", choices=tuple(OPTIMIZERS))
    instance: bool = option(False, "the task has a model, not a factory")
    needs_data: bool = option(False, "the loss looks into the outputs")


def _train(run: Run, options: Options) -> None:
    config = SIZES[options.size]
    tokens = torch.randint(config.vocab_size, (512, options.length), generator=torch.Generator().manual_seed(0))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        assert not options.needs_data or outputs.sum().item() != 0
        return cross_entropy(outputs.flatten(0, 1), targets.flatten())

    task = Task(
        model=Llama(config) if options.instance else lambda: Llama(config),
        loss=loss,
        optimizer=OPTIMIZERS[options.optimizer],
        train_data=TensorDataset(tokens, tokens),
        plan=PLAN,
    )
    if run.train_by is not None:
        run.train_by(run, task, options)
        return
    _measure(run, task, options, run.workload)


def _measure(run: Run, task: Task, options: StepSettings, name: str) -> None:
    trainer = make_trainer(task, run.setting(options.dtype, options))
    samples = [task.train_data[number] for number in range(options.batch_size)]
    trainer.step(tuple(torch.stack(part) for part in zip(*samples, strict=True)))
    parameters = list(trainer.model.parameters())
    optimizer: Any = trainer.optimizer
    state = getattr(optimizer, "optim", optimizer).state
    found = {
        "stage": run.mesh.get_local_rank("pipeline") if options.pp > 1 else 0,
        "parameters": _bytes(parameters),
        "gradients": _bytes(parameter.grad for parameter in parameters if parameter.grad is not None),
        "optimizer": _bytes(value for kept in state.values() for value in kept.values() if isinstance(value, Tensor)),
    }
    everyone: list[Any] = [None] * run.size
    torch.distributed.all_gather_object(everyone, found)
    run.print("measured " + json.dumps({"arguments": name, "ranks": everyone}))


def _bytes(tensors: Iterable[Tensor | nn.Parameter]) -> int:
    own = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in own)
