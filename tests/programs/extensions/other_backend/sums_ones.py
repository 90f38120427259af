"""A workload that says its backend, and the sum of a one of each rank."""

import torch
import torch.distributed as dist

from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    total = torch.ones(1)
    dist.all_reduce(total)
    run.print(f"{dist.get_backend()} {total.item()}")
