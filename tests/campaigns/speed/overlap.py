"""How much of an asynchronous allreduce hides behind matrix products that take about as long, by gloo and by mpi4py.

mpirun -np 2 python -m runner tests.campaigns.speed.overlap [--mebibytes 16] [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from runner.backends.timing import seconds_per_call
from runner.options.parsing import Parser
from runner.training.run import Run
from runner.training.settings import positive

BACKENDS = ("gloo", "mpi4py")

# A product takes about a millisecond, so that Python seldom holds the interpreter's lock: a thread that moves the data in
# Python needs it.
_LONGEST = 1.5e-3  # seconds
_WIDTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # of square matrices
_TURN = 0.05  # target for all calls of a turn, in seconds: ranks leave a barrier some milliseconds apart
_MOST = 500  # calls in a turn
_TRIALS = 10  # calls to time, for the time of one


def main(run: Run, argv: list[str]) -> None:
    parser = Parser(prog="python -m runner tests.campaigns.speed.overlap", description=__doc__)
    parser.add_argument("--mebibytes", type=positive, default=16, metavar="MIB")
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    data = torch.ones(given.mebibytes << 18, device=run.device)
    found = {}
    for name in BACKENDS:
        group = dist.new_group(backend=name)

        def start(group: dist.ProcessGroup = group) -> Callable[[], object]:
            work = dist.all_reduce(data, group=group, async_op=True)
            return work.wait

        start()()  # the first makes connections
        alone = seconds_per_call(lambda start=start: start()(), _TRIALS, run.device)
        found[name] = overlap(start, alone, given.rounds, run.device)
        run.print(
            f"{name:6} {found[name]:4.0%} of an allreduce of {given.mebibytes} MiB hidden ({1e3 * alone:.1f} ms alone)"
        )
    if run.is_main and given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


def overlap(start: Callable[[], Callable[[], object]], alone: float, rounds: int, device: torch.device) -> float:
    """The hidden share: (alone + work − both) ÷ min(alone, work), from 0 to 1.

    The formula is that of the Intel MPI Benchmarks (User Guide, IMB-NBC).

    Args:
        start: starts the collective; returns the function that waits for it.
        alone: seconds that it takes, the same on all ranks. The products are chosen to take about as long.
        rounds: the result is their median.
        device: computes the products.
    """
    product, each = _product(min(alone, _LONGEST), device)
    times, repeats = max(1, round(alone / each)), max(1, min(_MOST, round(_TURN / alone)))

    def work() -> None:
        for _ in range(times):
            product()

    def collective() -> None:
        wait = start()
        wait()

    def both() -> None:
        wait = start()
        work()
        wait()

    found = []
    for _ in range(rounds):
        pure, computed, together = (seconds_per_call(call, repeats, device) for call in (collective, work, both))
        found.append((pure + computed - together) / min(pure, computed))
    return max(0.0, min(1.0, statistics.median(found)))


def _product(longest: float, device: torch.device) -> tuple[Callable[[], object], float]:
    """The largest product that takes at most ``longest`` seconds, or else the smallest, and its time in seconds."""
    found: tuple[Callable[[], object], float] | None = None
    for width in _WIDTHS:
        one, other, result = (torch.ones(width, width, device=device) for _ in range(3))
        product = functools.partial(torch.mm, one, other, out=result)
        product()  # warm-up
        each = seconds_per_call(product, _TRIALS, device)
        if found is not None and each > longest:
            break
        found = product, each
    assert found is not None
    return found
