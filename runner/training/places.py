"""The places that a run writes to: they can be written, no other run writes there, and which hosts share them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.locks import held
from runner.training.loggers.registry import chosen_loggers
from runner.training.run import Run
from runner.training.settings import Settings


def check_output(run: Run, settings: Settings) -> None:
    """Check on rank 0 that what a training writes can be written. Collective.

    Raises:
        UsageError: it cannot, or ``--requeue`` cannot be obeyed.
    """

    def check() -> None:
        if settings.requeue and "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                "--requeue: this is no Slurm job",
                fix="leave it out; with another scheduler exit code 75 says to run it again",
            )
        make_writable(settings.checkpoint_dir, "--checkpoint-dir")
        make_writable(settings.metrics.parent, "--metrics")
        for chosen in chosen_loggers(settings.logger, settings.checkpoint_dir):
            chosen.load()

    if run.train_by is None:  # a tool that trains the task itself writes none of it
        run.on_main(check)


def make_writable(folder: Path, option: str) -> None:
    """Make a folder, and check that files can be created in it.

    Raises:
        UsageError: they cannot.
    """
    probe = folder / f".write-test-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"{option}: cannot write in {folder}: {error.strerror}", fix="name a folder that can be written"
        ) from None


@contextmanager
def owning(run: Run, options: Settings) -> Iterator[Callable[[], None]]:
    """Hold the leases of what rank 0 writes. Collective. Call it before anything of an earlier run is touched.

    Yields a function for rank 0 to call before it writes a checkpoint: it raises RunnerError if another run has taken a lease.

    Raises:
        UsageError: another run writes there, or nothing can be written.
    """
    check_output(run, options)
    checks: list[Callable[[], None]] = []
    with ExitStack() as stack:
        run.on_main(lambda: checks.append(stack.enter_context(held(_written(options), run.print))))

        def check() -> None:
            for one in checks:
                one()

        yield check


def _written(options: Settings) -> list[tuple[Path, str]]:
    found = [(options.checkpoint_dir, "--checkpoint-dir")]
    metrics = options.metrics
    if metrics.is_file() or not metrics.exists():  # no device, no pipe
        found.append((metrics, "--metrics"))
    for chosen in chosen_loggers(options.logger, options.checkpoint_dir):
        path = chosen.path_in(options.checkpoint_dir)
        if path is not None and chosen.target:  # else it is in --checkpoint-dir
            make_writable(path, chosen.option)
            found.append((path, chosen.option))
    return found


def once_per_file_system(run: Run, folder: Path, option: str, work: Callable[[], None]) -> None:
    """Call ``work`` on one rank of each file system that holds the folder. Collective.

    The first rank of every host creates a marker file. The lowest rank whose marker a host sees does the work for that
    host. So which hosts share the folder is measured, not assumed.

    Raises:
        UsageError: the folder cannot be written, or ``work`` raised it; all ranks raise it.
    """
    topology = run.job.topology
    leaders = [host.ranks[0] for host in topology.hosts]
    own_leader = leaders[topology.host_index(run.rank)]
    name = run.on_main(lambda: f".rank-{os.urandom(4).hex()}")
    marker = folder / f"{name}-{run.rank}"
    with run.agreeing():
        if run.rank == own_leader:
            make_writable(folder, option)
            marker.touch()
    try:
        with run.agreeing():
            # Each name is looked up only after it was made: a network file system may cache a miss.
            if run.rank == own_leader == next(rank for rank in leaders if (folder / f"{name}-{rank}").exists()):
                work()
    finally:
        marker.unlink(missing_ok=True)
