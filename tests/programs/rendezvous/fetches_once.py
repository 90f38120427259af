"""A workload that does some work once per shared file system, and notes who did it."""

from pathlib import Path

import torch.distributed as dist

from runner.training.places import once_per_file_system
from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    folder, log = Path(argv[0]), Path(argv[1])

    def work() -> None:
        (folder / "fetched").write_text("data")
        with log.open("a") as file:
            file.write(f"{run.rank}\n")

    once_per_file_system(run, folder, "--data-dir", work)
    assert (folder / "fetched").read_text() == "data"
    dist.barrier()  # every rank removes its own
    assert not list(folder.glob(".rank-*"))
