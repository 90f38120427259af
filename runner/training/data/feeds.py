"""The choice of each rank's part of the data, and of the processes that read it."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from runner.backends.gpu import is_gpu
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.mesh import Layout
from runner.training.data.feed import Feed
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.orders import CheckKeys, DrawnOrder, EpochOrder, ShuffledOrder
from runner.training.data.samples import check_keys, ranks_unlike_first, sketch_of
from runner.training.data.source import Source
from runner.training.data.streams import BatchStream, SampleStream
from runner.training.run import Run
from runner.training.settings import StepSettings


def feed_of(
    run: Run, source: Source, options: StepSettings, layout: Layout | None = None, *, beside: Source | None = None
) -> Feed:
    """Return this rank's batches. Collective, for a stream.

    Args:
        options: with the batch size that counts, see ``with_batch_of``.
        layout: says which rank has which part of the data; the default is the run's.
        beside: see ``reading_of``.

    Raises:
        UsageError: a sampler has no length where one is needed, the data is too small for one batch, or has the sampler of another job.
    """
    reading, layout = reading_of(source, options, run.device, beside), layout or run.layout
    rank, size = layout.data_rank(run.rank), layout.degrees.data
    say = (lambda text: None) if source.is_test else run.print
    agree = partial(_agree, run, size)
    how: Any = {"drop_last": source.drop_last, "shards_itself": source.shards_itself}
    data = (source.data, rank, size, options.seed, agree, say)
    if source.kind == "batches":
        return BatchStream(
            *data,
            alike=lambda batch: not ranks_unlike_first(run, sketch_of(batch)),
            has_one_size=options.pp > 1 and not source.is_test,
            **how,
        )
    if source.kind == "samples":
        return SampleStream(*data, batch_size=options.batch_size, collate=source.collate, reading=reading, **how)
    order = order_of(source, rank, size, options, partial(check_keys, run, source.chosen_by))
    return IndexedFeed(source.data, order, reading, source.collate)


def reading_of(source: Source, options: StepSettings, device: torch.device, beside: Source | None = None) -> Reading:
    """Return how processes read the data: by the loader's settings, else by the options.

    For a GPU the processes persist from epoch to epoch, and batches are in pinned memory.

    Args:
        beside: the task's other data (test or training). If processes are forked to read it, a process reads this data, too: a file
            that this process opened would be shared by all processes that are forked later.
    """
    loader, feeds_gpu = source.loader, is_gpu(device) and options.workers > 0
    if loader is not None:
        reading = Reading(**{one.name: getattr(loader, one.name) for one in fields(Reading)})
    else:
        prefetch = options.prefetch if options.workers else None
        reading = Reading(
            prefetch_factor=prefetch, pin_memory=feeds_gpu, persistent_workers=feeds_gpu and not source.is_test
        )
    forks = beside and (beside.kind == "batches" or reading_of(beside, options, device).num_workers)
    return replace(reading, num_workers=reading.num_workers or options.workers or int(bool(forks)))


@raised_on_all_ranks()
def with_batch_of(source: Source, options: Any) -> Any:
    """Return the settings, with the loader's batch size in the place of theirs.

    Raises:
        UsageError: the command line or a file gives another batch size, or micro-batches do not divide the loader's.
    """
    makes_batches = source.kind == "batches"
    loader = source.data if makes_batches else source.loader
    if loader is None:
        return options
    size = getattr(loader, "batch_size", None)
    size = size if isinstance(size, int) else None
    if size == options.batch_size and not makes_batches:
        return options
    for name in ("batch_size", "global_batch_size"):
        if options.given.get(name) is not None:
            makes = "the batches" if size is None or makes_batches else f"batches of {size} on each rank"
            raise UsageError(
                f"--{name.replace('_', '-')} {options.given[name]} is given, and the {type(loader).__name__} makes {makes}: the loader's count",
                fix="leave the option out, or give the Dataset itself, and its collate_fn beside it",
            )
    if size is None:
        return options
    if size % options.micro_batches and not source.is_test:
        raise UsageError(f"--micro-batches {options.micro_batches} does not divide the DataLoader's batch of {size}")
    return replace(options, batch_size=size, global_batch_size=None)


@raised_on_all_ranks()
def order_of(
    source: Source, rank: int, size: int, options: StepSettings, check: CheckKeys = lambda keys: None
) -> EpochOrder:
    """Return which samples a rank reads.

    Args:
        check: called with the keys that a sampler draws, which have to be the same on all ranks.

    Raises:
        UsageError: see ``feed_of``.
    """
    length, drop_last, each = len(source.data), source.drop_last, options.batch_size
    chosen = source.chosen_by
    if chosen is None:
        order: EpochOrder = ShuffledOrder(length, rank, size, each, options.seed, drop_last=drop_last)
    else:
        if isinstance(chosen, Sized):
            length = len(chosen)
        elif not getattr(options, "max_steps", None) and not source.is_test:
            raise UsageError(
                f"{type(chosen).__name__} has no length, which an epoch needs",
                fix="give it __len__, or say --max-steps",
            )
        distributed = _distributed(chosen, rank, size)
        each = each if source.batch_sampler is None else 0
        ranks = size if distributed is None else 1
        counted = None
        if source.is_test and distributed is not None and distributed is source.sampler:  # not what it adds to fill up
            counted = len(range(rank, len(distributed.dataset), size))  # type: ignore[arg-type]  # it has one: its sampler asked
        order = DrawnOrder(
            chosen,
            rank,
            size,
            each,
            options.seed,
            whole=1 if not drop_last else max(each, 1) * (1 if source.is_test else ranks),
            is_own=distributed is not None,
            counted=counted,
            check=check,
        )
    if order.steps(0) == 0:
        unit, most = ("samples", max(length // size, 1)) if each else ("batches", 0)
        less = f"{length // size} each, less than one batch of {each}" if each else "less than one each"
        raise UsageError(
            f"{length} {unit} on {size} data-parallel ranks are {less}" if length else "the data has no samples",
            fix=(f"take --batch-size {most} or less" if most else "take fewer ranks") if length else "give it some",
        )
    return order


def _distributed(chosen: Any, rank: int, size: int) -> DistributedSampler[Any] | None:
    """Return the DistributedSampler that chooses keys, if one does.

    Raises:
        UsageError: it is another rank's.
    """
    own = (one for one in (chosen, getattr(chosen, "sampler", None)) if isinstance(one, DistributedSampler))
    distributed = next(own, None)
    if distributed is not None and (distributed.num_replicas, distributed.rank) != (size, rank):
        raise UsageError(
            f"the DistributedSampler is of rank {distributed.rank} of {distributed.num_replicas}, and this is data-parallel rank {rank} of {size}",
            fix="give it rank=run.data_rank, num_replicas=run.data_size, or leave it out: the data is divided here",
        )
    return distributed


def _agree(run: Run, data_size: int, has: bool, samples: int) -> tuple[bool, int]:
    """See ``Agree``. Numbers of the host are added up, so that a GPU's queue of work is not waited for."""
    if run.size == 1:
        return has, samples
    both = torch.tensor([float(has), float(samples)], dtype=torch.float64)
    dist.all_reduce(both, group=run.host_group)
    return int(both[0]) == run.size, round(float(both[1])) * data_size // run.size
