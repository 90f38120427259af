"""Keep other runs out of the places that this run writes to while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.base.locks import held
from runner.training.loggers.registry import chosen_loggers
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.workload import check_output, make_writable


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
