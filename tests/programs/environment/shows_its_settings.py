"""A workload that prints its backend and its number of threads."""

import os

import torch.distributed as dist

from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    print(run.rank, dist.get_backend(), os.environ.get("OMP_NUM_THREADS"), flush=True)
