"""The description of a training, the same for every workload and every strategy."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.batch_forms import form_of, parts_of, with_tensors
from runner.parallel.materialize import materialize
from runner.parallel.modes import begin_training
from runner.parallel.pipeline.stages import PassThrough
from runner.parallel.reductions import check_mean
from runner.parallel.support import check_shapes
from runner.versions.torch_private import change_tensors, compiled_in_place

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from runner.parallel.settings import ParallelSettings


_COUNTS = ("warmup", "evaluate_every")  # fields that are numbers of steps


OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class Stateful(Protocol):
    """An object that can be saved and restored, as in torch.distributed.checkpoint: tensors, numbers, texts, lists and dicts."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan of where a model may be sharded or cut into stages, by the names of its modules; ``*`` stands for one part of a name (``layers.*``).

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
        """Refuse options that need what the plan does not say."""
        if problem := self.lacks(options):
            raise UsageError(f"this workload cannot be trained with {problem}")

    def lacks(self, options: ParallelSettings) -> str | None:
        """Return what the options need and the plan lacks; None if nothing."""
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
    """A training task: model and loss, data, and optimizer."""

    model: nn.Module | Callable[[], nn.Module]  # or a factory, for a model too large to be made in full on every rank
    optimizer: OptimizerFactory
    # The same on all ranks: a Dataset, a DataLoader, a stream, or anything that gives batches; of (input, target) pairs for ``loss``.
    train_data: Dataset[Any] | DataLoader[Any] | Iterable[Any]
    # One of the two. Either returns the mean over the batch, a scalar; or a pair (sum, weight), such as a sum over tokens and their
    # number: then the loss of a step is the sum over all ranks and micro-batches by the weight of all.
    loss: Callable[[Any, Any], Any] | None = None  # of (outputs, targets)
    # Of (model, batch), of any form; it calls the model once.
    batch_loss: Callable[[Callable[..., Any], Any], Any] | None = None
    test_data: Dataset[Any] | DataLoader[Any] | Iterable[Any] | None = None  # each sample is evaluated once
    # How batches are made of a Dataset; what a loader gives is used as it is. See docs/train/data.md.
    collate_fn: Callable[[list[Any]], Any] | None = None  # None: torch's
    sampler: Any = None  # gives keys of samples, the same on all ranks
    batch_sampler: Any = None  # gives lists of them
    drop_last: bool = True  # whether samples are left out that do not fill a batch on every rank
    shards_itself: bool = False  # whether a stream or loader gives each rank (a stream: each worker) its own samples
    is_classification: bool = True  # of outputs [batch, classes, …] by class numbers [batch, …]: accuracy is computed
    # Of the evaluation, by name: functions of (outputs, targets), with batch_loss of (outputs, batch), to the mean over the batch or a
    # pair (sum, weight), which are added up exactly over all ranks; or objects of torchmetrics.
    metrics: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "samples"  # what printed lines count
    units_per_sample: int = 1  # a sequence has many tokens
    flops_per_sample: float | None = None  # of a training step, if known: floating-point operations
    # Another unit of the loss, and how many of it one is: ("bits/byte", 1 / ln 2).
    loss_in: tuple[str, float] | None = None
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
    # Under ddp and zero1: a step may leave parameters without a gradient, on some ranks.
    find_unused_parameters: bool = False

    def build(self, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
        """The full model on a device, with its weights. ``dtype``: of its floating-point tensors; None: their own."""
        model = self.on_meta(dtype)
        if isinstance(self.model, nn.Module):
            return model.to(device)
        materialize(model, self.model, device)
        return model

    def on_meta(self, dtype: torch.dtype | None) -> nn.Module:
        """The model where it is, or a factory's on ``meta``, where it takes no memory: shard it, then ``materialize`` it."""
        with nullcontext() if isinstance(self.model, nn.Module) else torch.device("meta"):
            made = self.model if isinstance(self.model, nn.Module) else self.model()
            check_shapes(made)
            begin_training([made])
            if dtype is not None:  # made.to(dtype) would make complex ones real
                change_tensors(made, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
            return made

    def first_batch(self, count: int) -> Any:
        """Return a batch of the first samples of the training data, for tools that do not train on: a stream is read for it."""
        data: Any = self.train_data
        if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
            if data.batch_sampler is None:
                return data.collate_fn(data.dataset[next(iter(data.sampler))])
            return data.collate_fn([data.dataset[key] for key in next(iter(data.batch_sampler))[:count]])
        if hasattr(data, "__getitem__"):
            return (self.collate_fn or default_collate)([data[key] for key in range(count)])
        if isinstance(data, IterableDataset):
            return (self.collate_fn or default_collate)([*itertools.islice(data, count)])
        return next(iter(data))

    @raised_on_all_ranks()
    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimizer of these parameters.

        Raises:
            UsageError: it is none, or its step needs an argument, as a closure that computes the loss again; or, on several ranks,
                it has parameters that are not the model's.
        """
        own = [*parameters]
        made: Any = self.optimizer(iter(own))
        name = type(made).__name__
        if not isinstance(made, Optimizer):
            raise UsageError(
                f"the task's optimizer gives a {name}, and not a torch.optim.Optimizer",
                fix="give it a function of the parameters, such as lambda parameters: torch.optim.SGD(parameters, lr=0.1)",
            )
        # Of the class, as a scheduler replaces the object's own.
        arguments = [*inspect.signature(type(made).step).parameters.values()][1:]
        needed = [
            parameter.name
            for parameter in arguments
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if needed:
            raise lacks_argument(made, " and ".join(needed))
        known = {id(one) for one in [*own, *(self.model.parameters() if isinstance(self.model, nn.Module) else ())]}
        given = [one for group in made.param_groups for one in group["params"]]
        strange = [list(one.shape) for one in given if id(one) not in known]
        if strange and dist.is_initialized() and dist.get_world_size() > 1:
            raise UsageError(
                f"the optimizer has parameters that are not the model's (of shape {strange[0]}), and each rank would train its own",
                fix="make them the model's, as a loss's own by a module that has both and whose forward() returns the loss (batch_loss)",
            )
        return made

    def loss_of(self, call: Callable[..., Any], batch: Any) -> WeightedLoss:
        """Return the loss of a batch, computed by calling the model, or what calls it by the strategy.

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
        if self.loss is None:
            with raised_on_all_ranks():
                raise UsageError(
                    "the task's loss calls the model itself (batch_loss), and here the outputs are computed by stages, or by a tool",
                    fix="give the task a loss of (outputs, targets)",
                )
        return weighted(self.loss(outputs, targets))

    @raised_on_all_ranks()
    def check_stages(self, options: ParallelSettings) -> None:
        """Refuse a loss that calls the model itself, if a pipeline's stages compute the outputs."""
        if options.pp > 1 and self.batch_loss is not None:
            raise UsageError(
                f"--pp {options.pp}: stages compute the outputs, and the task's loss calls the model itself (batch_loss)",
                fix="give the task a loss of (outputs, targets)",
            )

    @raised_on_all_ranks()
    def __post_init__(self) -> None:
        """Check that there is one loss, and of the other fields what can be known now; take torch.compile()'s wrappers off the model."""
        made = self.model
        own = compiled_in_place(made) if isinstance(made, nn.Module) else lambda: compiled_in_place(made())
        object.__setattr__(self, "model", own)
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
        check_mean("loss", self.loss)
        for name, metric in self.metrics.items():
            check_mean(f"metric {name}", metric)
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
    """The parsed ``keep_best``: the number of an evaluation that counts, and whether the largest is the best."""

    name: str
    largest: bool

    @classmethod
    def of(cls, text: str) -> Best:
        """Parse ``loss``, ``min NAME`` or ``max NAME``, and refuse another text."""
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

    @property
    def mean(self) -> Tensor:
        """Return the loss of one batch as one real number: the mean, if the loss is a sum and its weight."""
        return self.loss if self.weight is None else self.loss / self.weight


def weighted(loss: Any) -> WeightedLoss:
    """Check what a task's loss returns: one real number, or a sum and its weight."""
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


def lacks_argument(optimizer: Optimizer, what: str) -> UsageError:
    """Return the refusal of an optimizer whose step needs an argument."""
    return UsageError(
        f"{type(optimizer).__name__}.step() needs {what}, and is called here without: a step computes the loss once",
        fix="take an optimizer that needs none, such as torch.optim.AdamW",
    )


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
