"""A workload that fails on rank 1, while the others communicate."""

from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    if run.rank == 1:
        run.no_such_thing()
    run.sum(1)
