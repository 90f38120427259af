"""A workload whose rank 1 prepares its training for long, while rank 0 waits for it."""

import time

from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    if run.rank == 1:
        time.sleep(200)
    run.sum(1)
