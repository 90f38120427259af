"""A small training by ``fit``, whose one step sees all samples, which are those of the evaluation; and what is left of its model's modes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import TensorDataset

import runner


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    """Of this workload."""

    epochs: int = 1
    global_batch_size: int | None = 64
    lr: float = 1e-12
    types: str = runner.option("float32", "of the model; mixed: float64, then float32")
    mode: str = runner.option("", "in evaluation mode from the start: part, or root")


class Single(nn.Module):
    """Brings its input to float32."""

    def forward(self, values: Tensor) -> Tensor:
        return values.float()


def main(run: runner.Run, options: Options) -> None:
    """Train, and print which modules were in training mode in each step."""
    torch.manual_seed(options.seed)
    cross_entropy = nn.functional.cross_entropy
    data = TensorDataset(torch.randn(64, 8) + 5, torch.randint(0, 40, (64,)))
    norm = [nn.BatchNorm1d(12)] if options.mode else []
    model = nn.Sequential(nn.Linear(8, 12), nn.Sequential(*norm, nn.Tanh()), nn.Linear(12, 40), nn.Identity())
    if options.types == "mixed":
        model[0], model[3] = model[0].double(), Single()
        model[1] = nn.Sequential(nn.Tanh(), Single())
    else:
        model.to(getattr(torch, options.types))
    losses = set[str]()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses.add(str(outputs.dtype))
        return cross_entropy(outputs, targets)

    if options.mode:
        (model if options.mode == "root" else model[1]).eval()
    task = runner.Task(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=data,
        test_data=data,
        metrics={"ce": cross_entropy},
        evaluate_every=1,
        plan=runner.Plan(
            shard=("0", "2"), pipeline=("0", "2"), tensor={"0": ColwiseParallel(), "2": RowwiseParallel()}
        ),
    )
    seen: list[str] = []

    def see(state: runner.State) -> None:
        modes = {name: state.model.get_submodule(name).training for name in ("", "1", "3")}
        seen.append(" ".join(name or "root" for name, mode in modes.items() if mode))
        state.model.eval()  # and forgets it

    def freeze(state: runner.State) -> None:
        state.model.get_submodule("3").eval()

    made = {str(one.dtype) for one in model.parameters()}
    run.fit(task, on_step=[see] if options.mode else [], on_epoch=[freeze])
    run.print(f"given {sorted(made)}, outputs {sorted(losses)}")
    if options.mode and run.is_main:
        print(f"in training mode: {', '.join(seen)}; statistics: {float(norm[0].running_mean.abs().max()):.3f}")
