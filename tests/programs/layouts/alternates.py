"""A workload: a model of which each of two micro-batches uses another half. Prints by how much its gradients differ from one process's."""

import torch
from deviations import largest
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.parallel import Setting, make_trainer
from runner.parallel.settings import ParallelSettings
from runner.parallel.task import Plan, Task
from runner.training.run import Run


class Either(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList(nn.Linear(8, 8, dtype=torch.float64) for _ in range(2))

    def forward(self, values: Tensor) -> Tensor:
        return self.halves[int(values[0, 0] > 0)](values)


def main(run: Run, argv: list[str]) -> None:
    torch.manual_seed(0)
    task = Task(
        model=Either(),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=TensorDataset(torch.zeros(1)),
        plan=Plan(shard=("halves.*",) if "units" in argv else ()),
    )
    halves = torch.ones(2, 8, dtype=torch.float64), -torch.ones(2, 8, dtype=torch.float64)
    expected = Either()
    expected.load_state_dict(task.model.state_dict())
    for half in halves:
        (nn.functional.mse_loss(expected(half), half * 3) / 2).backward()
    replicate = 2 if "replicate" in argv else None
    options = ParallelSettings(strategy="fsdp", micro_batches=2, replicate=replicate)
    trainer = make_trainer(task, Setting(device=run.device, dtype=torch.float64, mesh=run.mesh, options=options))
    trainer.backward((torch.cat(halves), torch.cat(halves) * 3))
    found = {name: one.grad.full_tensor() for name, one in trainer.model.named_parameters() if one.grad is not None}
    wanted = {name: one.grad for name, one in expected.named_parameters()}
    assert found.keys() == wanted.keys(), found.keys()
    deviation = largest((found[name] - one).abs().max().item() for name, one in wanted.items() if one is not None)
    print(f"rank {run.rank}: {deviation < 1e-12}")
