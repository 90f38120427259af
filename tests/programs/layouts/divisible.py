"""A small network that can be divided in every way, as its plan says."""

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import TensorDataset

from runner.parallel.task import Plan
from runner.training.loop import State, Task, fit
from runner.training.options import read_options, workload_parser
from runner.training.run import Run

PLAN = Plan(shard=("*",), tensor={"0": ColwiseParallel(), "2": RowwiseParallel()}, pipeline=("*",))


def main(run: Run, argv: list[str]) -> None:
    run.say("began")
    parser = workload_parser(run, None, data=("random",), plan=PLAN)
    parser.add_argument("--flip", metavar="NAME", help="the parameter of which a bit is flipped, after the second step")
    parser.add_argument("--on", type=int, help="the rank where that happens")
    options, given = read_options(run, parser, argv)
    torch.manual_seed(options.seed)
    task = Task(
        model=lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 8), nn.Linear(8, 2)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=options.lr),
        train_data=TensorDataset(torch.rand(256, 16), torch.rand(256, 2)),
        is_classification=False,
        plan=PLAN,
    )

    def after(state: State) -> None:
        if state.position.step == 2 and run.rank == given.on:
            parameter = state.model.get_parameter(given.flip).data
            local: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.view(torch.int32).view(-1)[0] ^= 1

    fit(run, task, options, on_step=[after])
