"""A workload with dropout on what tensor parallelism divides and on what it does not, which prints the masks of its last step."""

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleOutput, RowwiseParallel, SequenceParallel
from torch.utils.data import TensorDataset

from runner.parallel.state import local_tensor
from runner.training.loop import Plan, State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

WIDTH, LENGTH = 16, 8
PLAN = Plan(
    shard=("layers.*",),
    tensor={"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()},
    sequence={
        "embed": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
        "layers.*.norm": SequenceParallel(),
        "layers.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
    pipeline=("layers.*", "head"),
)


class Drop(nn.Dropout):
    mask = ""

    def forward(self, values: Tensor) -> Tensor:
        dropped = super().forward(values)
        if self.training and torch.is_grad_enabled():
            kept = local_tensor(dropped.detach()).reshape(-1)[:48] != 0
            self.mask = "".join(map(str, kept.int().tolist()))
        return dropped


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.inside, self.outside = Drop(0.5), Drop(0.5)

    def forward(self, values: Tensor) -> Tensor:
        inside = nn.functional.dropout(self.inside(nn.functional.silu(self.up(self.norm(values)))), 0.2, self.training)
        return values + self.outside(self.down(inside))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(5, WIDTH), nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, values: Tensor) -> Tensor:
        values = self.embed(values)
        for layer in self.layers:
            values = layer(values)
        outputs: Tensor = self.head(values)
        return outputs


def main(run: Run, options: Settings) -> None:
    torch.manual_seed(options.seed)
    tokens = torch.randint(5, (256, LENGTH + 1))
    task = Task(
        model=Net,
        loss=lambda outputs, targets: nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        train_data=TensorDataset(tokens[:, :-1], tokens[:, 1:]),
        is_classification=False,
        plan=PLAN,
    )
    masks: dict[str, str] = {}

    def note(state: State) -> None:
        drops = {name: module for name, module in state.model.named_modules() if isinstance(module, Drop)}
        masks.update({name: module.mask for name, module in drops.items()})

    fit(run, task, options, on_step=[note])
    everyone: list[Any] = [None] * run.size
    torch.distributed.all_gather_object(everyone, masks)
    run.print("masks " + json.dumps(everyone))
