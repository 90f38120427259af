"""What a task's batches come from: a data set, a loader of the user's, or a stream."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    default_collate,
    default_convert,
)

from runner.backends.gpu import is_gpu
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.mesh import Layout
from runner.parallel.task import Task
from runner.training.data.feed import Feed
from runner.training.data.loading import Collate, IndexedFeed, Reading
from runner.training.data.orders import (
    BatchOrder,
    DrawnSampler,
    EpochOrder,
    OwnSampler,
    SampleOrder,
    ShardSampler,
    SharedSampler,
)
from runner.training.data.streams import Agree, StreamFeed, StreamShare
from runner.training.run import Run
from runner.training.settings import StepSettings

_STATEFUL = "torchdata.stateful_dataloader.sampler"
_OF_READING = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "timeout", "worker_init_fn")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What batches are made of. The fields but ``data`` and ``loader`` are a task's of the same names.

    Attributes:
        data: with numbered samples, or a stream.
        loader: the user's, of that data.
        collate_fn: makes a batch of a list of samples; None: torch's.
        sampler: of numbers of samples, the same on all ranks, which take every n-th of them each; or a ``DistributedSampler``.
        batch_sampler: the same of lists of numbers.
        drop_last: whether samples are dropped that do not fill a batch on every rank.
        shards_itself: whether a stream gives other samples on each rank and in each worker.
    """

    data: Any
    loader: DataLoader[Any] | None = None
    collate_fn: Collate | None = None
    sampler: Any = None
    batch_sampler: Any = None
    drop_last: bool = True
    shards_itself: bool = False

    @property
    def is_stream(self) -> bool:
        return isinstance(self.data, IterableDataset)

    @property
    def length(self) -> int | None:
        """Samples of the data; None of a stream."""
        return None if self.is_stream or not isinstance(self.data, Sized) else len(self.data)

    @property
    def is_single(self) -> bool:
        """Whether an item of the data is a batch."""
        return self.loader is not None and self.loader.batch_size is None and self.loader.batch_sampler is None

    @property
    def collate(self) -> Collate:
        """What makes a batch."""
        if self.loader is not None:
            own: Collate = self.loader.collate_fn
            return own
        return self.collate_fn or (default_convert if self.is_single else default_collate)


@raised_on_all_ranks()
def source_of(task: Task) -> Source:
    """The source of a task's training data.

    Raises:
        UsageError: the task says the same twice, or has a sampler of what has no numbers.
    """
    data: Any = task.train_data
    given = {one.name: getattr(task, one.name) for one in fields(Source)[2:] if hasattr(task, one.name)}
    if isinstance(data, DataLoader):
        twice = [name for name in ("collate_fn", "sampler", "batch_sampler") if given.get(name) is not None]
        if twice:
            raise UsageError(
                f"the task has a DataLoader and {' and '.join(twice)}",
                fix="give them to the DataLoader, or it the Dataset",
            )
        source = Source(**given, data=data.dataset, loader=data)
        source = replace(source, drop_last=data.drop_last)
        if not source.is_stream:
            source = replace(source, sampler=_sampler_of(data), batch_sampler=_batches_of(data))
    else:
        source = Source(**given, data=data)
    if source.sampler is not None and source.batch_sampler is not None:
        raise UsageError("the task has a sampler and a batch_sampler", fix="leave one out")
    if source.is_stream and not (source.sampler is source.batch_sampler is None):
        raise UsageError(
            f"{type(source.data).__name__} is a stream, of which no sampler can choose", fix="leave it out"
        )
    own = getattr(source.data, "shards_itself", False)
    return replace(source, shards_itself=source.shards_itself or bool(own))


@raised_on_all_ranks()
def test_source(task: Task, train: Source) -> Source:
    """The source of a task's test data, which has numbers: each of its samples is evaluated once.

    Raises:
        UsageError: it has none.
    """
    data: Any = task.test_data
    if isinstance(data, DataLoader):
        data, collate = data.dataset, data.collate_fn
    else:
        collate = None if train.loader is not None else train.collate_fn
    length_of(data)
    return Source(data=data, collate_fn=collate)


def _sampler_of(loader: DataLoader[Any]) -> Any:
    """The loader's sampler, if it has one that is not in a batch sampler; None for ``shuffle=True``, which is done here."""
    sampler: Any = loader.sampler
    is_shuffle = (
        _is_random_sampler(type(sampler))
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    return None if _batches_of(loader) is not None or is_shuffle else sampler


def _is_random_sampler(kind: type) -> bool:
    """Whether it is torch's, or torchdata's, which StatefulDataLoader makes for ``shuffle=True``: no class derived from torch's."""
    return kind is RandomSampler or (kind.__module__, kind.__name__) == (_STATEFUL, "RandomSampler")


def _batches_of(loader: DataLoader[Any]) -> Any:
    """The user's batch sampler; None if torch has made it of a sampler and a batch size."""
    return loader.batch_sampler if loader.batch_size is None else None


@raised_on_all_ranks()
def with_batch_of(source: Source, options: Any) -> Any:
    """The settings, with the loader's batch size in the place of theirs.

    Raises:
        UsageError: another one is given on the command line or in a file, or micro-batches do not divide it.
    """
    size = source.loader.batch_size if source.loader is not None else None
    if source.loader is None or size == options.batch_size:
        return options
    name = next((one for one in ("batch_size", "global_batch_size") if options.given.get(one) is not None), None)
    if name is not None:
        makes = "the batches" if size is None else f"batches of {size} on each rank"
        raise UsageError(
            f"--{name.replace('_', '-')} {options.given[name]} is given, and the DataLoader makes {makes}: the loader's count",
            fix="leave the option out, or give the Dataset itself, and its collate_fn beside it",
        )
    if size is None:
        return options
    if size % options.micro_batches:
        raise UsageError(f"--micro-batches {options.micro_batches} does not divide the DataLoader's batch of {size}")
    return replace(options, batch_size=size, global_batch_size=None)


def feed_of(run: Run, source: Source, options: StepSettings, layout: Layout | None = None) -> Feed:
    """This rank's batches. Collective, for a stream.

    Args:
        layout: which rank has which part of the data; without it the run's.
        options: with the batch size that counts, see ``with_batch_of``.

    Raises:
        UsageError: the data has no length where one is needed, is too small for one batch, or has the sampler of another job.
    """
    reading, layout = reading_of(source, options, run.device), layout or run.layout
    rank, size = layout.data_rank(run.rank), layout.degrees.data
    if source.is_stream:
        share = StreamShare(
            source.data,
            rank,
            size,
            options.batch_size if source.loader is None else source.loader.batch_size,
            options.seed,
            source.collate,
            drop_last=source.drop_last,
            shards_itself=source.shards_itself,
        )
        can = all(callable(getattr(source.data, name, None)) for name in ("state_dict", "load_state_dict"))
        return StreamFeed(share, reading, _agreement(run, size), run.print, is_stateful=can)
    order = order_of(source, rank, size, options)
    return IndexedFeed(source.data, order, reading, source.collate, is_single=source.is_single)


def reading_of(source: Source, options: StepSettings, device: torch.device) -> Reading:
    """By which processes the data is read: the loader's settings, else the options.

    For a GPU the processes live on from epoch to epoch, and batches are in pinned memory, from which they are copied while it works.
    """
    loader = source.loader
    if loader is not None:
        own = {name: getattr(loader, name) for name in _OF_READING}
        reading = Reading(**own, multiprocessing_context=loader.multiprocessing_context)
        return reading if reading.num_workers or not options.workers else replace(reading, num_workers=options.workers)
    feeds_gpu = is_gpu(device) and options.workers > 0
    prefetch = options.prefetch if options.workers else None
    return Reading(
        num_workers=options.workers, prefetch_factor=prefetch, pin_memory=feeds_gpu, persistent_workers=feeds_gpu
    )


@raised_on_all_ranks()
def order_of(source: Source, rank: int, size: int, options: StepSettings) -> EpochOrder:
    """Which samples a rank reads.

    Raises:
        UsageError: as ``feed_of``.
    """
    length, drop_last = length_of(source.data), source.drop_last
    sampler, batches, seed = source.sampler, source.batch_sampler, options.seed
    inner = getattr(batches, "sampler", None)
    distributed = next((one for one in (sampler, batches, inner) if isinstance(one, DistributedSampler)), None)
    if distributed is not None and (distributed.num_replicas, distributed.rank) != (size, rank):
        raise UsageError(
            f"the DistributedSampler is of rank {distributed.rank} of {distributed.num_replicas}, and this is data-parallel rank {rank} of {size}",
            fix="give it rank=run.data_rank, num_replicas=run.data_size, or leave it out: the data is divided here",
        )
    for one in (sampler, batches):
        if one is not None and not isinstance(one, Sized):
            raise UsageError(f"{type(one).__name__} has no length, which an epoch needs", fix="give it __len__")
    if batches is not None or source.is_single:
        order = BatchOrder(
            batches if batches is not None else sampler or source.loader.sampler,  # type: ignore[union-attr]  # is_single: there is a loader
            rank,
            size,
            seed,
            drop_last=drop_last,
            is_own=distributed is not None,
            is_single=batches is None,
        )
        if not order.steps(0):
            raise UsageError(
                f"{order.length} batches for {size} data-parallel ranks are less than one each", fix="take fewer ranks"
            )
        return order
    shared: SharedSampler
    if distributed is not None:
        shared = OwnSampler(distributed, rank, size, seed, drop_last=drop_last)
    elif sampler is not None:
        shared = DrawnSampler(sampler, rank, size, seed, drop_last=drop_last)
    else:
        shared = ShardSampler(length, rank, size, seed, drop_last=drop_last)
    check_length(shared.length, size, options.batch_size, drop_last=drop_last)
    return SampleOrder(shared, options.batch_size)


@raised_on_all_ranks()
def length_of(data: Any) -> int:
    """How many samples there are.

    Raises:
        UsageError: the data has no length, because it is a stream.
    """
    name = type(data).__name__
    if not isinstance(data, Sized):
        raise UsageError(f"{name} has no length, which sharing it among ranks needs", fix="give it __len__")
    if isinstance(data, IterableDataset):
        raise UsageError(
            f"{name} is an IterableDataset, whose samples have no numbers",
            fix="make it a Dataset with __len__ and __getitem__",
        )
    return len(data)


@raised_on_all_ranks()
def check_length(length: int, size: int, batch_size: int, *, drop_last: bool = True) -> None:
    """Check that there is a full batch for each data-parallel rank, or without ``drop_last`` a sample.

    Raises:
        UsageError: there is not.
    """
    share = length // size
    if drop_last and share < batch_size:
        raise UsageError(
            f"{length} samples on {size} data-parallel ranks are {share} each, less than one batch of {batch_size}",
            fix=f"take --batch-size {max(share, 1)} or less",
        )
    if not length:
        raise UsageError("the data has no samples", fix="give it some")


def _agreement(run: Run, data_size: int) -> Agree:
    """Numbers of the host are added up, so that a GPU's queue of work is not waited for."""
    import torch.distributed as dist

    if run.size == 1:
        return lambda has, samples: (has, samples)
    group: Any = dist.new_group(backend="gloo") if is_gpu(run.device) else None

    def agree(has: bool, samples: int) -> tuple[bool, int]:
        both = torch.tensor([float(has), float(samples)], dtype=torch.float64)
        dist.all_reduce(both, group=group)
        return int(both[0]) == run.size, round(float(both[1])) * data_size // run.size

    return agree
