"""A workload that says which backend it was given."""

import torch.distributed as dist

from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    run.print(dist.get_backend())
