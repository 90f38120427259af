"""The description of a training, the same for every workload and every strategy."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from runner.backends.gpu import is_gpu
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.pipeline.stages import PassThrough
from runner.parallel.same_start import check_digests, check_structure, digest_of
from runner.parallel.state import copy_shard
from runner.parallel.support import check_shapes
from runner.parallel.tied import shared_parameters
from runner.parallel.trees import pieces, tensors_in
from runner.versions.torch_private import change_tensors

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from runner.parallel.settings import ParallelSettings

_OR_NO_FACTORY = "give it one that initialises its parameters and buffers, as torch's modules have, or give the task a model in place of a function"
_ALIKE = "draw them by torch, random or numpy.random, which are seeded alike on all ranks"
_UNSET, _HEAD = 0xA5, 64  # a byte, and how many of them a tensor begins with that was not initialised

_COUNTS = ("warmup", "evaluate_every")  # fields that are numbers of steps

_LONGEST, _SHOWN = 200, 8  # characters of a described form, and parts of each of its parts

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class Stateful(Protocol):
    """What can be saved and restored, as torch.distributed.checkpoint has it: tensors, numbers, texts, lists and dicts."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where a model may be sharded or cut into stages, by the names of its modules; ``*`` stands for one part of a name (``layers.*``).

    Attributes:
        shard: FSDP's units; the parameters of one module are gathered together.
        tensor: how layers are sharded, in the form of ``parallelize_module``; modules that it does not name are on every rank.
        sequence: the same for ``--sequence-parallel``.
        pipeline: modules that may begin a stage. The model calls its modules in the order in which it registers them, each
            with the one before's output, so that a module of another stage can be replaced by one that passes it on. One without
            parameters stays with those before it.
        outputs: the module whose outputs ``--loss-parallel`` leaves sharded by classes; ``tensor`` names it, too.
    """

    shard: tuple[str, ...] = ()
    tensor: Mapping[str, ParallelStyle] = field(default_factory=dict)
    sequence: Mapping[str, ParallelStyle] = field(default_factory=dict)
    pipeline: tuple[str, ...] = ()
    outputs: str | None = None

    def units(self, model: nn.Module) -> list[nn.Module]:
        """The model's modules that ``shard`` names, in the model's order."""
        return [model.get_submodule(name) for name in _matching(model, self.shard)]

    def styles(self, model: nn.Module, *, sequence: bool) -> dict[str, ParallelStyle]:
        """How the model's layers are sharded, by the names that it has."""
        styles = self.sequence if sequence else self.tensor
        return {name: style for pattern, style in styles.items() for name in _matching(model, [pattern])}

    def cuts(self, model: nn.Module) -> list[str]:
        """The names of the model's modules that may begin a stage, in the model's order."""
        return _matching(model, self.pipeline)

    @raised_on_all_ranks()
    def check(self, options: ParallelSettings) -> None:
        """Check that the plan says what the options need.

        Raises:
            UsageError: it does not.
        """
        if problem := self.lacks(options):
            raise UsageError(f"this workload cannot be trained with {problem}")

    def lacks(self, options: ParallelSettings) -> str | None:
        """What the options ask for and the plan does not say, if anything."""
        needs = (
            (
                options.tp > 1,
                self.tensor,
                f"--tp {options.tp}: it does not say how its layers are sharded (Plan.tensor)",
            ),
            (options.sequence_parallel, self.sequence, "--sequence-parallel: it does not say where (Plan.sequence)"),
            (options.loss_parallel, self.outputs, "--loss-parallel: it names no module for the outputs (Plan.outputs)"),
            (options.pp > 1, self.pipeline, f"--pp {options.pp}: it does not say where it can be cut (Plan.pipeline)"),
            (
                options.activation_checkpointing != "none",
                self.shard,
                "--activation-checkpointing: it names no units to compute again (Plan.shard)",
            ),
        )
        return next((problem for is_asked, has, problem in needs if is_asked and not has), None)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained: model and loss, data, and optimizer."""

    model: nn.Module | Callable[[], nn.Module]  # or a factory, for a model too large to be made in full on every rank
    optimizer: OptimizerFactory
    # The same on all ranks: a Dataset, a DataLoader or a stream; of (input, target), if there is a loss of outputs and targets.
    train_data: Dataset[Any] | DataLoader[Any]
    # One of the two. Either returns the mean over the batch, a scalar; or a pair (sum, weight), such as a sum over tokens and their
    # number: then the loss of a step is the sum over all ranks and micro-batches by the weight of all.
    loss: Callable[[Any, Any], Any] | None = None  # of (outputs, targets)
    batch_loss: Callable[[Callable[..., Any], Any], Any] | None = (
        None  # of (model, batch), of any form; it calls the model once
    )
    test_data: Dataset[Any] | DataLoader[Any] | None = None
    # How batches are made of a Dataset; of a DataLoader its own count. See docs/train/data.md.
    collate_fn: Callable[[list[Any]], Any] | None = None  # None: torch's
    sampler: Any = None  # of numbers of samples, the same on all ranks
    batch_sampler: Any = None  # of lists of them
    drop_last: bool = True  # whether samples are left out that do not fill a batch on every rank
    shards_itself: bool = False  # whether a stream gives each rank and worker its own samples
    is_classification: bool = True  # of outputs [batch, classes, …] by class numbers [batch, …]: accuracy is computed
    # Of the evaluation, by name: functions of (outputs, targets), with batch_loss of (outputs, batch), to the mean over the batch or a
    # pair (sum, weight), which are added up exactly over all ranks; or objects of torchmetrics.
    metrics: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "samples"  # what printed lines count
    units_per_sample: int = 1  # a sequence has many tokens
    flops_per_sample: float | None = None  # of a training step, if known: floating-point operations
    loss_in: tuple[str, float] | None = (
        None  # another unit of the loss, and how many of it one is: ("bits/byte", 1 / ln 2)
    )
    # Step, from 0 → factor of the learning rate; with a second parameter that is given the total of steps.
    schedule: Callable[[int], float] | Callable[[int, int], float] | None = None
    warmup: int = 0  # steps in which the learning rate grows linearly to its value, which the schedule multiplies, too
    evaluate_every: int = 0  # steps; 0: after each epoch only
    # Of all evaluations the checkpoint of the best is kept, too: "loss", the lowest; "max accuracy"; "min NAME" of a metric.
    keep_best: str | None = None
    # Of one's own, by name: saved and restored with the model. Rank 0's state counts, unless its tensors are sharded.
    state: Mapping[str, Stateful] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # plain, of the result; --resume prints changes
    weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None  # to start from, by name; all are needed
    plan: Plan = field(default_factory=Plan)  # data parallel needs none
    find_unused_parameters: bool = (
        False  # under ddp and zero1: a step may leave parameters without a gradient, on some ranks
    )

    def build(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The full model on a device, with its weights."""
        model = self.on_meta(dtype)
        if isinstance(self.model, nn.Module):
            return model.to(device)
        materialize(model, self.model, device)
        return model

    def on_meta(self, dtype: torch.dtype) -> nn.Module:
        """The model where it is, or a factory's on ``meta``, where it takes no memory: shard it, then ``materialize`` it."""
        if isinstance(self.model, nn.Module):
            check_shapes(self.model)
            return _cast(self.model, dtype)
        with torch.device("meta"):
            made = _cast(self.model(), dtype)
        check_shapes(made)
        return made

    def first_batch(self, count: int) -> Any:
        """A batch of the first samples of the training data, as the data has them."""
        data: Any = self.train_data
        collate = self.collate_fn or default_collate
        if isinstance(data, DataLoader):
            data, collate = data.dataset, data.collate_fn
        has_numbers = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)
        return collate(
            [data[number] for number in range(count)] if has_numbers else list(itertools.islice(data, count))
        )

    @raised_on_all_ranks()
    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimizer of these parameters.

        Raises:
            UsageError: it is none, or its step needs an argument, as a closure that computes the loss again.
        """
        made: Any = self.optimizer(parameters)
        name = type(made).__name__
        if not isinstance(made, Optimizer):
            raise UsageError(
                f"the task's optimizer gives a {name}, and not a torch.optim.Optimizer",
                fix="give it a function of the parameters, such as lambda parameters: torch.optim.SGD(parameters, lr=0.1)",
            )
        needed = [
            parameter.name
            for parameter in inspect.signature(made.step).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if needed:
            raise _needs(made, " and ".join(needed))
        return made

    def loss_of(self, call: Callable[..., Any], batch: Any) -> WeightedLoss:
        """The loss of a batch, computed by calling the model.

        Args:
            call: the model, or what calls it by the strategy.

        Raises:
            UsageError: the batch has a form that the task's loss does not take, or the loss is no number.
        """
        if self.batch_loss is not None:
            return weighted(self.batch_loss(call, with_tensors(batch)))
        inputs, targets = parts_of(batch)
        return self.loss_of_outputs(call(inputs), targets)

    def loss_of_outputs(self, outputs: Any, targets: Any) -> WeightedLoss:
        """The loss of a batch by the model's outputs for it.

        Raises:
            UsageError: it is no number, or the task's loss calls the model itself.
        """
        return weighted(self._loss_of_pairs(outputs, targets))

    def mean_loss(self, outputs: Any, targets: Any) -> Tensor:
        """The same as one real number, for one batch by itself: of a sum and its weight the mean."""
        loss, weight = self.loss_of_outputs(outputs, targets)
        return loss if weight is None else loss / weight

    @property
    @raised_on_all_ranks()
    def _loss_of_pairs(self) -> Callable[[Any, Any], Any]:
        if self.loss is None:
            raise UsageError(
                "the task's loss calls the model itself (batch_loss), and here the outputs are computed by stages, or by a tool",
                fix="give the task a loss of (outputs, targets)",
            )
        return self.loss

    @raised_on_all_ranks()
    def __post_init__(self) -> None:
        """Check that there is one loss, and of the other fields what can be known now."""
        if (self.loss is None) == (self.batch_loss is None):
            raise UsageError(
                f"the task has {'no loss' if self.loss is None else 'two losses'}",
                fix="give it loss, of (outputs, targets), or batch_loss, of (model, batch)",
            )
        for name in _COUNTS:
            if not isinstance(number := getattr(self, name), int) or number < 0:
                raise UsageError(
                    f"the task's {name} is {number!r}, and has to be a number of steps", fix="leave it out, or take 100"
                )
        if self.keep_best is not None:
            if self.test_data is None:
                raise UsageError(f"keep_best={self.keep_best!r}, and the task has no test_data", fix="give it some")
            Best.of(self.keep_best)
        for name, metric in self.metrics.items():
            if name == "loss":
                raise UsageError("a metric is named loss, as what is always computed", fix="name it otherwise")
            if not (adds_up_itself(metric) if counts_itself(metric) else callable(metric)):
                raise UsageError(
                    f"the metric {name} ({type(metric).__name__}) is no function, and knows nothing of the other ranks",
                    fix="give a function of (outputs, targets), or a torchmetrics.Metric",
                )


def counts_itself(metric: Any) -> bool:
    """Whether it is a torchmetrics.Metric or a collection of them, or like one."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def adds_up_itself(metric: Any) -> bool:
    """Whether such a metric adds up what all ranks have counted: it has a group of ranks, as torchmetrics' have."""
    return all(hasattr(one, "process_group") for one in members_of(metric))


def members_of(metric: Any) -> list[Any]:
    """The metrics of a collection, or the one."""
    return [*metric.values()] if isinstance(metric, nn.ModuleDict) else [metric]


class Best(NamedTuple):
    """What ``keep_best`` says: the number of an evaluation that counts, and whether the largest is the best."""

    name: str
    largest: bool

    @classmethod
    def of(cls, text: str) -> Best:
        """``loss``, ``min NAME`` or ``max NAME``.

        Raises:
            UsageError: it is something else.
        """
        way, _, name = ("min loss" if text == "loss" else text).partition(" ")
        if way not in ("min", "max") or not name:
            raise UsageError(
                f"keep_best={text!r} is none of 'loss', 'max accuracy' and 'min NAME' of a metric",
                fix="say which number counts, and whether the largest or the smallest is the best",
            )
        return cls(name, way == "max")

    def is_better(self, one: float, other: float | None) -> bool:
        """Whether a number is better than the best so far, if there is one."""
        if not math.isfinite(one):
            return False
        return other is None or (one > other if self.largest else one < other)


class WeightedLoss(NamedTuple):
    """A batch's loss: the mean over its samples, if there is no weight; else a sum, of which the weight's number of parts is the mean."""

    loss: Tensor
    weight: Tensor | None = None


def weighted(loss: Any) -> WeightedLoss:
    """What a task's loss returns, checked: one real number, or a sum and its weight.

    Raises:
        UsageError: it is something else.
    """
    total, weight = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, None)
    if not isinstance(total, Tensor) or total.numel() != 1 or not total.is_floating_point():
        raise UsageError(
            f"the loss of a batch is {form_of(loss)}, and has to be one real number, as a tensor",
            fix="make it the mean over the batch, for example by reduction='mean', or a pair of their sum and their number",
        )
    if weight is None:
        return WeightedLoss(total)
    if not isinstance(weight, Tensor | int | float) or (isinstance(weight, Tensor) and weight.numel() != 1):
        raise UsageError(
            f"the weight of a batch's loss is {form_of(weight)}, and has to be one number",
            fix="return (sum, weight), such as the number of tokens that count",
        )
    return WeightedLoss(total, torch.as_tensor(weight, dtype=torch.float64, device=total.device).detach().reshape(()))


@contextmanager
def closures_refused(optimizer: Optimizer) -> Iterator[None]:
    """A step of an optimizer that may ask for a closure only when it is called without, as those of sharpness-aware methods do.

    Raises:
        UsageError: it has asked for one.
    """
    try:
        yield
    except Exception as error:
        if "closure" not in str(error).lower():
            raise
        raise _needs(optimizer, "a closure") from error


def _needs(optimizer: Optimizer, what: str) -> UsageError:
    return UsageError(
        f"{type(optimizer).__name__}.step() needs {what}, and is called here without: a step computes the loss once",
        fix="take an optimizer that needs none, such as torch.optim.AdamW",
    )


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with its real floating-point tensors in this dtype. (``model.to(dtype)`` makes complex ones real.)"""
    change_tensors(model, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return model


def _matching(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """The names of the model's modules, but for those that stand for another stage's."""
    parts = [pattern.split(".") for pattern in patterns]
    return [
        name
        for name, module in model.named_modules()
        if any(len(own) == len(name.split(".")) and all(map(fnmatchcase, name.split("."), own)) for own in parts)
        and name  # not the model itself
        and not isinstance(module, PassThrough)
    ]


@torch.no_grad()
def materialize(model: nn.Module, factory: Callable[[], nn.Module], device: torch.device) -> None:
    """Allocate a model that is on ``meta``, and initialise its weights (``reset_parameters``).

    The model may be sharded: each module is initialised in full, on every rank that has a shard of it, from a seed of its name
    (and ``torch.initial_seed()``); then the rank takes its shard. So the weights do not depend on how the model is sharded,
    and no more than one full module is in memory. Collective, where there is a process group.

    Args:
        factory: makes such a model, unsharded.

    Raises:
        UsageError: a module with parameters or buffers of its own has no ``reset_parameters``, or one that leaves some as
            they were, or initialises them differently on other ranks.
    """
    _allocate(model, device)
    digests: dict[str, Tensor | None] = {}
    places = dict(model.named_modules())
    with torch.device("meta"):
        full = factory()
    check_structure(full)
    names = [_joined(name, key) for name, module in full.named_modules() for key in _own_tensors(module)]
    where: dict[int, list[tuple[str, str]]] = {}  # the modules that have a tensor, of which the first initialises it
    for name, module in full.named_modules():
        for key, tensor in _own_tensors(module).items():
            where.setdefault(id(tensor), []).append((name, key))
    for name, module in full.named_modules():
        own = {key: where[id(tensor)] for key, tensor in _own_tensors(module).items()}
        wanted = {
            key: [getattr(places[place], its) for place, its in users if hasattr(places.get(place), its)]
            for key, users in own.items()
            if users[0] == (name, key)
        }
        label = f"{name or 'the model'} ({type(module).__name__})"
        if wanted and not hasattr(module, "reset_parameters"):
            with raised_on_all_ranks():  # also where the module is in another stage
                raise UsageError(f"{label} has no reset_parameters()", fix=_OR_NO_FACTORY)
        if not any(wanted.values()):  # it is in other stages
            continue
        if uninitialised := _initialise(module, name, device):
            error = UsageError(f"{label}: reset_parameters() does not initialise {uninitialised}", fix=_OR_NO_FACTORY)
            error.on_all_ranks = not any(isinstance(place, PassThrough) for place in places.values())
            raise error
        for key, shards in wanted.items():
            digests[_joined(name, key)] = digest_of(getattr(module, key))
            for shard in shards:
                copy_shard(getattr(module, key), shard)
        module.to_empty(device=torch.device("meta"), recurse=False)
    check_digests([(name, digests.get(name)) for name in names], "the weights by reset_parameters()", _ALIKE)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _initialise(module: Any, name: str, device: torch.device) -> str | None:
    """Allocate the module's own tensors, and initialise them. Returns the name of one that is left uninitialised."""
    module.to_empty(device=device, recurse=False)
    for tensor in _own_tensors(module).values():
        _head_of(tensor).fill_(_UNSET)
    seed, before = _seed_of(name), (random.getstate(), numpy.random.get_state())
    with torch.random.fork_rng([device], device_type=device.type) if is_gpu(device) else torch.random.fork_rng([]):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        module.reset_parameters()
    random.setstate(before[0])
    numpy.random.set_state(before[1])
    tensors = _own_tensors(module).items()
    return next((key for key, tensor in tensors if tensor.numel() and bool((_head_of(tensor) == _UNSET).all())), None)


def _head_of(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)[:_HEAD]


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _allocate(model: nn.Module, device: torch.device) -> None:
    """``to_empty``, which would untie parameters (torch 2.14)."""
    shared = shared_parameters(model)
    model.to_empty(device=device)
    for one in shared:
        one.tie()


def _seed_of(name: str) -> int:
    digest = hashlib.sha256(f"{torch.initial_seed()} {name}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def parts_of(batch: Any) -> tuple[Tensor, Tensor]:
    """A batch's inputs and targets.

    Raises:
        UsageError: it has another form.
    """
    if isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        inputs, targets = batch
        if inputs.dim() and targets.dim() and len(inputs) == len(targets):
            return inputs, targets
    raise UsageError(
        f"a batch of the data is {form_of(batch)}, and has to be two tensors, (inputs, targets), of the same length",
        fix="make each sample a pair (input, target), or give the task batch_loss, of (model, batch), for batches of any form",
    )


def with_tensors(batch: Any) -> Any:
    """The batch, which has some.

    Raises:
        UsageError: it has none, so that nothing could be computed of it on the device.
    """
    if next(tensors_in(batch), None) is None:
        raise UsageError(
            f"a batch of the data is {form_of(batch)}, and has no tensors",
            fix="make them in the data set or in collate_fn, for example of texts by a tokenizer",
        )
    return batch


def micro_batches(batch: Any, count: int) -> list[tuple[Any, int]]:
    """A batch in so many pieces, each with its number of samples.

    Raises:
        UsageError: its tensors have no common first dimension by which it could be divided.
    """
    try:
        return pieces(batch, count)
    except ValueError:
        raise UsageError(
            f"--micro-batches {count}: the batch {form_of(batch)} cannot be divided by the first dimension of its tensors",
            fix="give all its tensors one entry per sample, or drop --micro-batches",
        ) from None


def form_of(value: Any) -> str:
    """A value's form, in at most 200 characters: ``(float32 [8, 3], {'mask': bool [8]})``."""
    text = _form_of(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _form_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_form_of(one)}' for key, one in itertools.islice(value.items(), _SHOWN))}}}"
    if isinstance(value, list | tuple):
        if value and not any(isinstance(one, Tensor | Mapping | list | tuple) for one in value):
            return f"a {type(value).__name__} of {len(value)} {type(value[0]).__name__}"
        ends = "()" if isinstance(value, tuple) else "[]"
        return f"{ends[0]}{', '.join(map(_form_of, value[:_SHOWN]))}{ends[1]}"
    return f"of type {type(value).__name__}"
