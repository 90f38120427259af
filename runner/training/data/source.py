"""The source of a task's batches. What a loader gives is used as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.task import Task
from runner.training.data.loading import Collate

_OF_SHUFFLE = "torch.utils.data.sampler.RandomSampler", "torchdata.stateful_dataloader.sampler.RandomSampler"
_NOT_BESIDE_BATCHES = ("collate_fn", "sampler", "batch_sampler")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of batches. The fields except ``data``, ``kind``, ``loader`` and ``is_test`` are a task's of the same names.

    Attributes:
        data: samples with keys, a stream of samples, or an object that gives batches; ``kind`` says which.
        loader: the user's, of data with keys.
        sampler: gives keys, and ``batch_sampler`` lists of keys: the same on all ranks, or a ``DistributedSampler``.
        drop_last: whether samples are dropped that do not fill a batch on every rank (test data: that do not fill a batch).
        is_test: whether a model is evaluated on it.
    """

    data: Any
    kind: Literal["keys", "samples", "batches"] = "keys"
    loader: DataLoader[Any] | None = None
    collate_fn: Collate | None = None
    sampler: Any = None
    batch_sampler: Any = None
    drop_last: bool = True
    shards_itself: bool = False
    is_test: bool = False

    @property
    def is_stream(self) -> bool:
        return self.kind != "keys"

    @property
    def length(self) -> int | None:
        """The number of samples; None for a stream."""
        return None if self.is_stream or not isinstance(self.data, Sized) else len(self.data)

    @property
    def chosen_by(self) -> Any:
        """The sampler of keys, or of lists of keys; None if keys are shuffled here."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def collate(self) -> Collate:
        """The function that makes a batch of a list of samples."""
        return self.loader.collate_fn if self.loader is not None else self.collate_fn or default_collate


def source_of(task: Task) -> Source:
    """Return the source of a task's training data.

    Raises:
        UsageError: the task says the same twice, or has a sampler for data without keys.
    """
    given = (*_NOT_BESIDE_BATCHES, "drop_last", "shards_itself")
    return _source(task.train_data, **{one: getattr(task, one) for one in given if hasattr(task, one)})


def source_of_test(task: Task) -> Source:
    """Return the source of a task's test data: what its loader gives, or each sample once, in order.

    Raises:
        UsageError: it cannot be read.
    """
    data: Any = task.test_data
    collate = None if isinstance(data, DataLoader) or isinstance(task.train_data, DataLoader) else task.collate_fn
    source = replace(_source(data, collate_fn=collate, drop_last=False), is_test=True)
    if source.kind == "keys" and source.chosen_by is None:
        return replace(source, sampler=source.loader.sampler if source.loader else range(len(data)))
    return source


@raised_on_all_ranks()
def _source(data: Any, **given: Any) -> Source:
    kind = _kind_of(data)
    if isinstance(data, DataLoader) or kind == "batches":
        twice = [name for name in _NOT_BESIDE_BATCHES if given.get(name) is not None]
        if twice:
            raise UsageError(
                f"the task has a {type(data).__name__}, which makes batches, and {' and '.join(twice)}",
                fix="give them to the DataLoader, or it the Dataset",
            )
    source = Source(**given, data=data, kind=kind)
    shards_itself = source.shards_itself or bool(getattr(data, "shards_itself", False))
    if kind == "batches":
        is_own = isinstance(getattr(data, "sampler", None), DistributedSampler)
        inner = getattr(getattr(data, "dataset", None), "shards_itself", False)
        source, shards_itself = replace(source, drop_last=False), shards_itself or is_own or bool(inner)
    elif isinstance(data, DataLoader):
        batches = data.batch_sampler if data.batch_size is None else None  # else torch has made it
        source = replace(
            source,
            data=data.dataset,
            loader=data,
            drop_last=data.drop_last,
            sampler=None if batches is not None or _shuffles(data) else data.sampler,
            batch_sampler=batches,
        )
    if source.sampler is not None and source.batch_sampler is not None:
        raise UsageError("the task has a sampler and a batch_sampler", fix="leave one out")
    if kind == "samples" and source.chosen_by is not None:
        raise UsageError(
            f"{type(source.data).__name__} is a stream, of which no sampler can choose", fix="leave it out"
        )
    if isinstance(source.chosen_by, Iterator):
        raise UsageError(
            f"the sampler is a {type(source.chosen_by).__name__}, which gives one epoch",
            fix="give an object with __iter__",
        )
    return replace(source, shards_itself=shards_itself)


def _kind_of(data: Any) -> Literal["keys", "samples", "batches"]:
    """Return whether data has keys, is a stream of samples, or gives batches.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(data, DataLoader):
        is_theirs = type(data).__iter__.__module__.startswith(("torch.", "torchdata."))
        has_keys = data.batch_sampler is not None and not isinstance(data.dataset, IterableDataset)
        return "keys" if is_theirs and has_keys else "batches"
    if isinstance(data, IterableDataset):
        # webdataset's WebLoader is a stream that has a DataLoader at its beginning.
        has_loader = any(isinstance(one, DataLoader) for one in getattr(data, "pipeline", ()))
        return "batches" if has_loader else "samples"
    if hasattr(data, "__getitem__"):
        return "keys"
    if isinstance(data, Iterable):
        return "batches"
    raise UsageError(
        f"the data is a {type(data).__name__}, which cannot be read",
        fix="give a Dataset, a DataLoader, or whatever gives batches by __iter__",
    )


def _shuffles(loader: DataLoader[Any]) -> bool:
    """Return whether the loader was made with ``shuffle=True``, by torch or torchdata: then all samples are shuffled here."""
    sampler: Any = loader.sampler
    is_theirs = f"{type(sampler).__module__}.{type(sampler).__name__}" in _OF_SHUFFLE
    return is_theirs and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
