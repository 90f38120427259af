"""The rows of a study: which are to be measured, with what words, and what a measured run's ranks put into one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from runner.base.errors import UsageError
from runner.command import given_in
from runner.launch.target import find_target
from runner.measuring.measured_run import StepsSeen
from runner.tools.costs.study import STRONG, WEAK, Size

ALONE = "its ranks have no process group: each trains alone, and its efficiency says nothing"
_NOT_FEW = 0.05  # of a step, an interval that is wider; of a host's cores, more that others use: it is said
_UNEVEN = 1.25  # the mean of steps over their median
_SUNK = 0.95  # of a clock's frequency
_LITTLE = 0.3  # cores, on a small host


def planned(
    target: Sequence[str],
    arguments: Sequence[str],
    sizes: Sequence[int],
    *,
    scaling: str,
    batch_size: int | None,
    global_batch_size: int | None,
) -> list[tuple[Size, tuple[str, ...]]]:
    """The rows in the order in which they take turns, with the words of their runs after the runner's options.

    A size that the target's layout or batch does not fit has its problem in the row.

    Args:
        target: its name, after -m if it is a module that is run as a program.
        scaling: strong, weak or both.
        batch_size: of a rank; None: 32 for a workload, and not known for a script.

    Raises:
        UsageError: a script is to be measured in strong scaling.
    """
    *form, name = target
    is_workload = find_target(name, form="".join(form), tools=()).kind == "workload"
    if not is_workload and (scaling == STRONG or global_batch_size):
        raise UsageError(
            f"--scaling strong: {name} has its own batch per rank, so only weak scaling can be measured",
            fix="take --scaling weak, or make a workload of it",
        )
    each = batch_size or (32 if is_workload else 0)
    rows = []
    for kind in (STRONG, WEAK):
        if scaling not in (kind, "both") or (kind == STRONG and not is_workload):
            continue
        for ranks in sizes:
            size, own = Size(scaling=kind, ranks=ranks, batch=each * ranks), []
            if is_workload:
                sharing = _data_degree(size, arguments)
                size.batch = (global_batch_size or each * sizes[-1]) if kind == STRONG else each * sharing
                if not size.problem and size.batch % sharing:
                    size.problem = f"the batch of {size.batch} is not divided by {sharing} ranks"
                own = [f"--global-batch-size={size.batch}"]
            rows.append((size, (*target, *arguments, *own)))
    return rows


def _data_degree(size: Size, arguments: Sequence[str]) -> int:
    """Among how many ranks a batch is divided."""
    try:
        return given_in(arguments).parallel().degrees(size.ranks).data
    except UsageError as error:
        size.problem = error.message
        return size.ranks


def take(size: Size, ranks: Sequence[StepsSeen]) -> None:
    """Put what a run's ranks have seen into its row, as one more round."""
    steps = [max(one) for one in zip(*(rank.seconds for rank in ranks), strict=False)]  # the slowest rank's
    if not steps:
        size.problem = "it has ended before its steps were timed; fewer --warmup, or more data"
        return
    if (batch := ranks[0].batch) and batch != size.batch:
        if size.scaling == STRONG:
            size.problem = (
                f"n/a: its data comes in batches of its own, of {batch} samples on all ranks, and here it is to be {size.batch}; "
                "give the task the Dataset in the place of the DataLoader"
            )
            return
        size.batch = batch
        size.warnings.append(f"its data comes in batches of its own: {batch} samples on all ranks")
    size.rounds.append(statistics.median(steps))
    size.waiting = _mean(statistics.median(rank.waiting) for rank in ranks if rank.waiting)
    size.memory = max(rank.memory for rank in ranks)
    size.busy = _mean(rank.busy for rank in ranks if rank.busy is not None)
    joules = [rank.joules for rank in ranks if rank.joules is not None]
    size.joules = sum(joules) / len(steps) if joules else None
    size.clock = min((rank.clock for rank in ranks if rank.clock is not None), default=None)
    computing = [rank.compute for rank in ranks if rank.compute is not None]
    if computing:
        size.compute = statistics.fmean(computing)
        size.exposed = _mean(rank.exposed for rank in ranks if rank.exposed is not None)
        size.imbalance = max(computing) - size.compute
    longer = statistics.fmean(steps) / statistics.median(steps)
    for holds, text in (
        (len(steps) < ranks[0].asked, f"its training ended after {len(steps)} of {ranks[0].asked} timed steps"),
        (any(rank.repeats for rank in ranks), f"the data is shorter than {len(steps)} steps, and began again"),
        (longer > _UNEVEN, "some steps take much longer than the median: data, evaluation or saving between them"),
        (len(ranks) > 1 and not all(rank.is_joined for rank in ranks), ALONE),
    ):
        if holds and text not in size.warnings:
            size.warnings.append(text)


def take_without_data(size: Size, ranks: Sequence[StepsSeen], problem: str) -> None:
    """Of a run whose loaders give their first batch again and again."""
    if problem:
        size.warnings.append(f"not run with one batch: {problem}")
    elif steps := [max(one) for one in zip(*(rank.seconds for rank in ranks), strict=False)]:
        size.without_data = statistics.median(steps)


def judge(sizes: Sequence[Size], cores: int) -> None:
    """Say in the rows what speaks against their figures.

    Args:
        cores: of a host.
    """
    most = max((size.others for size in sizes), default=0.0)
    for size in sizes:
        if not size.rounds:
            continue
        if size.uncertainty > _NOT_FEW * size.seconds:
            size.warnings.append(f"its steps differ: ±{size.uncertainty / size.seconds:.0%} (95 %)")
        if size.ranks > cores * max(1, size.hosts):
            size.warnings.append(f"{size.ranks} ranks on {cores * max(1, size.hosts)} cores: they wait for one another")
        if size.clock is not None and size.clock < _SUNK:
            size.warnings.append(f"a device's clock sank to {size.clock:.0%} while its steps were timed")
        if size.others > max(_LITTLE, _NOT_FEW * cores):
            size.warnings.append(f"other work used up to {most:.1f} of a host's {cores} cores before a run")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
