"""A model with a frozen part, and one that is frozen for some calls: which parameters get gradients, and which optimizer state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import runner
from runner.parallel.state import full_tensor


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    dtype: str = "float64"
    batch_size: int = 4


def made(*frozen: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    for number in frozen:
        model[number].requires_grad_(False)
    return model


def names(found: dict[str, Any]) -> str:
    return " ".join(found) or "none"


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: full_tensor(one.grad) for name, one in model.module.named_parameters() if one.grad is not None}


def main() -> None:
    run = runner.start(Options.from_args())
    torch.manual_seed(0)
    adam = torch.optim.Adam
    # Units: each layer; of the second model one, in which the head alone is trained.
    apart = run.prepare(made(0), optimizer=adam, name="apart", plan=runner.Plan(shard=("*",)))
    together = run.prepare(made(0, 2), optimizer=adam, name="together")
    judge = run.prepare(made(), optimizer=adam, name="judge", plan=runner.Plan(shard=("2",)))
    maker = run.prepare(nn.Linear(4, 4), optimizer=adam, name="maker")
    for (inputs,) in run.batches(torch.utils.data.TensorDataset(torch.randn(8 * run.data_size, 4))):
        for name, model in (("apart", apart), ("together", together)):
            model.backward(model(inputs).square().mean())
            run.print(f"{name} gradients: {names(gradients(model))}")
            model.step()
            parameters = {one: key for key, one in model.module.named_parameters()}
            run.print(f"{name} state: {names({parameters[one]: 0 for one in model.trainer.optimizer.state})}")
        judge.backward(judge(inputs).mean())
        before = {name: one.clone() for name, one in gradients(judge).items()}
        judge(inputs)  # what is gathered for it stays so
        with judge.frozen():
            loss = judge(maker(inputs)).mean()
        maker.backward(loss)
        same = all(torch.equal(one, before[name]) for name, one in gradients(judge).items())
        run.print(f"judge: same gradients {same}; maker: {names(gradients(maker))}")
        judge.step()
        maker.step()


if __name__ == "__main__":
    main()
