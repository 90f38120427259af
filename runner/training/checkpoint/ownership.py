"""What a run writes is its own while it trains: no other run writes there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.base.locks import Holder, Lock, held
from runner.launch.job_entry import number_of_job
from runner.training.loggers.registry import chosen_loggers
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.workload import make_writable


@contextmanager
def owning(run: Run, options: Settings) -> Iterator[Callable[[], None]]:
    """Hold the locks of what rank 0 writes. Collective. Before this nothing of an earlier run is touched.

    Yields what is called on rank 0 before a checkpoint is written: it raises a RunnerError if another run has taken a lock over.

    Raises:
        UsageError: another run writes there.
    """
    locks: list[Lock] = []
    with ExitStack() as stack:

        def hold() -> None:
            locks.extend(stack.enter_context(held(_written(options), _holder(run), run.print)))
            run.job.board.hold([str(lock.path) for lock in locks])

        def check() -> None:
            for lock in locks:
                lock.check()

        run.on_main(hold)
        yield check


def _written(options: Settings) -> list[tuple[Path, str]]:
    found = [(options.checkpoint_dir, "--checkpoint-dir")]
    metrics = options.metrics
    if metrics.is_file() or not metrics.exists():  # no device, no pipe
        found.append((metrics, "--metrics"))
    for chosen in chosen_loggers(options.logger, options.checkpoint_dir):
        path = chosen.path_in(options.checkpoint_dir)
        if path is not None and chosen.target:  # else it is in --checkpoint-dir
            make_writable(path if chosen.known.is_folder else path.parent, chosen.option)
            found.append((path, chosen.option))
    return found


def _holder(run: Run) -> Holder:
    job, environment = run.job, run.job.context.environment
    return Holder.here(
        job=number_of_job(environment) or "",
        start=environment.get("SLURM_RESTART_COUNT", "0") if "SLURM_JOB_ID" in environment else "",
        supervised=job.supervised,
        attempt=job.attempt,
    )
