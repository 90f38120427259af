"""The options that say how a model is trained in parallel. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from runner.errors import UsageError, raised_on_all_ranks
from runner.extensions import extensions
from runner.parallel.mesh import Degrees, Layout
from runner.quantities import positive, positive_float

HOOKS = ("none", "bf16", "fp16", "powersgd")


@dataclass(frozen=True, kw_only=True)
class StrategyTraits:
    """What is known of a strategy before it is loaded.

    Attributes:
        function: what makes its trainer, as ``module:function``.
        shards: whether data-parallel ranks have a part of each parameter; None if that is not known.
        shards_optimizer: whether they have a part of the optimizer's state each, and the model whole.
        is_local: whether they train by themselves, and average their weights every ``--sync-every`` steps.
        averages: whether they exchange the average of all gradients in a step, and nothing else.
        is_divisible: whether it goes with ``--tp`` and ``--pp``.
        hooks: how it can compress gradients.
        scales: whether it goes with fp16's gradient scaler.
    """

    function: str = ""
    shards: bool | None = False
    shards_optimizer: bool = False
    is_local: bool = False
    averages: bool = False
    is_divisible: bool = False
    hooks: tuple[str, ...] = ()
    scales: bool = True


STRATEGIES = {
    "ddp": StrategyTraits(function="runner.parallel.ddp:ddp", averages=True, is_divisible=True, hooks=HOOKS[1:]),
    "fsdp": StrategyTraits(function="runner.parallel.fsdp:fsdp", shards=True, is_divisible=True),
    "zero1": StrategyTraits(function="runner.parallel.zero1:zero1", shards_optimizer=True),
    "local-sgd": StrategyTraits(function="runner.parallel.local_sgd:local_sgd", is_local=True, scales=False),
    "horovod": StrategyTraits(function="runner.parallel.horovod:horovod", averages=True, hooks=("fp16",), scales=False),
}
# One of another package refuses itself what it does not bear.
_OF_OTHERS = StrategyTraits(shards=None, is_divisible=True, hooks=HOOKS[1:])


def traits_of(strategy: str) -> StrategyTraits:
    """What is known of a strategy, by its name."""
    return STRATEGIES.get(strategy, _OF_OTHERS)


PRECISIONS = ("fp32", "bf16", "fp16")
CHECKPOINTED = ("none", "full", "selective")
OUTER_OPTIMIZERS = ("none", "nesterov")


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule of torch.distributed.pipelining.

    Attributes:
        name: torch's.
        stages: per rank: the default, which is also the smallest number.
        is_fixed: whether it works for that number only.
        splits_backward: whether it computes the gradients of inputs and of weights at different times.
    """

    name: str
    stages: int = 1
    is_fixed: bool = True
    splits_backward: bool = False


SCHEDULES = {
    "gpipe": Schedule("GPipe"),
    "1f1b": Schedule("1F1B"),
    "interleaved1f1b": Schedule("Interleaved1F1B", stages=2, is_fixed=False),
    "interleaved-zero-bubble": Schedule("InterleavedZeroBubble", stages=2, is_fixed=False, splits_backward=True),
    "zbv": Schedule("ZBVZeroBubble", stages=2, splits_backward=True),
    "dualpipev": Schedule("DualPipeV", stages=2, splits_backward=True),
}


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """How a step is computed by all ranks together."""

    strategy: str = "ddp"
    tp: int = 1  # ranks among which each layer is divided
    pp: int = 1  # ranks among which the layers are divided
    replicate: int | None = None  # copies of a sharded model; None: as the strategy has it
    sequence_parallel: bool = False
    loss_parallel: bool = False
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    micro_batches: int = 1  # backward passes per step, or what a pipeline's batch is cut into
    activation_checkpointing: str = "none"  # one of CHECKPOINTED
    offload: str = "none"  # cpu: parameters, gradients and optimizer state live in host memory
    precision: str = "fp32"  # of computing: one of PRECISIONS; fp32 is the parameters' own
    compile: bool = False
    comm_hook: str = "none"  # how gradients go over the wire: one of HOOKS
    clip_norm: float | None = None  # limit of the norm of all gradients, before the optimizer steps
    sync_every: int = 8  # local SGD's steps between two averagings
    outer_optimizer: str = "none"  # one of OUTER_OPTIMIZERS

    @property
    def stage_owners(self) -> list[int]:
        """Of each stage, the index in the pipeline of the rank that has it. Some schedules go forth and back."""
        ranks = list(range(self.pp))
        if self.schedule in ("zbv", "dualpipev"):
            return [*ranks, *reversed(ranks)]
        return ranks * self.stages_per_rank

    @property
    def is_sharded(self) -> bool:
        """Whether data-parallel ranks have a part of each parameter; where that is not known, if copies are asked for."""
        shards = traits_of(self.strategy).shards
        return self.replicate is not None if shards is None else shards

    @property
    def features(self) -> list[str]:
        """Which rows of ``runner.features.FEATURES`` it uses."""
        used = {
            "selective": self.activation_checkpointing == "selective",
            "tp": self.tp > 1,
            "fsdp": self.is_sharded,
            "sequence-parallel": self.sequence_parallel,
            "pp": self.pp > 1,
        }
        return [name for name, is_used in used.items() if is_used]

    def features_in(self, layout: Layout) -> list[str]:
        """Which other rows it uses where ranks are laid out so."""
        is_divided = self.tp > 1 or self.pp > 1
        used = {
            "copies": is_divided and not self.is_sharded and (layout.degrees.data > 1 or self.precision != "fp32"),
            "order": not layout.is_ascending,
        }
        return [name for name, is_used in used.items() if is_used]

    @raised_on_all_ranks()
    def degrees(self, ranks: int) -> Degrees:
        """The degree of each kind of parallelism: data parallelism takes the ranks that the others leave.

        Raises:
            UsageError: the degrees do not fit the number of ranks.
        """
        rest: Literal["shard", "replicate"] = "shard" if self.is_sharded else "replicate"
        degrees = Degrees.of(ranks, replicate=self.replicate or 1, pipeline=self.pp, tensor=self.tp, rest=rest)
        if self.replicate == ranks > 1:
            raise UsageError(
                f"--replicate {ranks} is a whole model on each of the {ranks} ranks, so that nothing is sharded",
                fix="take fewer copies, or --strategy ddp",
            )
        return degrees


def strategy_names() -> list[str]:
    """The names of all strategies, including those of other packages (entry point ``runner.strategies``)."""
    return [*STRATEGIES, *(point.name for point in extensions("runner.strategies"))]


def add_parallel_options(parser: argparse.ArgumentParser) -> None:
    """Add the group to a parser."""
    group = parser.add_argument_group("parallel", "how a step is computed by all ranks together")
    _add_layout_options(group)
    _add_step_options(group)


def _add_layout_options(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Those that say which rank has what: every workload has them."""
    group.add_argument(
        "--strategy",
        choices=strategy_names(),
        default=ParallelOptions.strategy,
        metavar="NAME",
        help="of data parallelism: ddp and horovod have the model whole on every rank, zero1 divides the optimizer's state, "
        "fsdp divides parameters and gradients too, local-sgd exchanges seldom (default: %(default)s)",
    )
    group.add_argument(
        "--tp", type=positive, default=1, metavar="N", help="tensor parallelism: N ranks share each layer"
    )
    group.add_argument(
        "--pp", type=positive, default=1, metavar="N", help="pipeline parallelism: N ranks share the layers"
    )
    group.add_argument(
        "--replicate",
        type=positive,
        metavar="N",
        help="with fsdp: N copies of the model, each sharded within (near) ranks; otherwise there is one",
    )


def _add_step_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--sequence-parallel", action="store_true", help="with --tp: divide the sequence between the divided layers"
    )
    group.add_argument(
        "--loss-parallel", action="store_true", help="with --tp: compute the loss where the outputs are, class by class"
    )
    group.add_argument(
        "--micro-batches",
        type=positive,
        metavar="N",
        help="compute each batch in N parts, of a whole number of samples: with --pp they are in the pipeline at once (default: "
        "twice the stages), else gradients are accumulated (default: 1)",
    )
    group.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="1f1b",
        metavar="NAME",
        help=f"of the pipeline: {', '.join(SCHEDULES)} (default: %(default)s)",
    )
    group.add_argument(
        "--stages-per-rank", type=positive, metavar="N", help="of the pipeline (default: as the schedule needs)"
    )
    group.add_argument(
        "--activation-checkpointing",
        choices=CHECKPOINTED,
        default="none",
        metavar="HOW",
        help="compute a layer's activations again in the backward pass: full, or selective, which keeps attention's results and "
        "every second linear layer's (default: %(default)s)",
    )
    group.add_argument(
        "--offload",
        choices=("none", "cpu"),
        default="none",
        help="with fsdp: keep parameters and optimizer in host memory",
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="compute in this type; parameters keep theirs (default: %(default)s)",
    )
    group.add_argument(
        "--compile", action="store_true", help="torch.compile, layer by layer; needs a C++ compiler on CPUs"
    )
    group.add_argument(
        "--comm-hook",
        "--compression",
        choices=HOOKS,
        default="none",
        metavar="HOW",
        help="compress gradients on the wire: fp16, bf16, powersgd; horovod has fp16 only (default: %(default)s)",
    )
    group.add_argument(
        "--clip-norm", type=positive_float, metavar="NORM", help="scale gradients down whose norm is above this"
    )
    group.add_argument(
        "--sync-every", type=positive, default=8, metavar="N", help="with local-sgd: average every N steps (default: 8)"
    )
    group.add_argument(
        "--outer-optimizer",
        choices=OUTER_OPTIMIZERS,
        default="none",
        help="with local-sgd: how the average is taken over; nesterov makes it DiLoCo (default: %(default)s)",
    )


@raised_on_all_ranks()
def read_parallel_options(given: argparse.Namespace) -> ParallelOptions:
    """The group's options as they were given.

    Raises:
        UsageError: two of them do not go together.
    """
    values = {field.name: getattr(given, field.name) for field in fields(ParallelOptions)}
    schedule = SCHEDULES[given.schedule]
    stages = given.stages_per_rank or (schedule.stages if given.pp > 1 else 1)
    values["stages_per_rank"] = stages
    values["micro_batches"] = given.micro_batches or (2 * given.pp * stages if given.pp > 1 else 1)
    options = ParallelOptions(**values)
    for is_wrong, problem in _conflicts(options):
        if is_wrong:
            raise UsageError(problem)
    return options


@raised_on_all_ranks()
def parallel_options_in(arguments: Sequence[str]) -> ParallelOptions:
    """The options in a workload's arguments, before the workload is loaded.

    Raises:
        UsageError: two of them do not go together.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_parallel_options(parser)
    try:
        given = parser.parse_known_args(arguments)[0]
    except UsageError:
        # A workload without the runner's parser may have an option of the same name; one that has it refuses the value itself.
        parser = _Parser(add_help=False, allow_abbrev=False)
        _add_layout_options(parser)
        return ParallelOptions(**vars(parser.parse_known_args(arguments)[0]))
    return read_parallel_options(given)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message)


def _conflicts(options: ParallelOptions) -> list[tuple[bool, str]]:
    """What does not go together: (whether it is so here, what to say)."""
    name, schedule = options.strategy, SCHEDULES[options.schedule]
    traits = traits_of(name)
    is_divided = options.tp > 1 or options.pp > 1
    stages, micro_batches = options.stages_per_rank, options.micro_batches
    return [
        (
            is_divided and not traits.is_divisible,
            f"--strategy {name} has the model whole on every rank, and --tp {options.tp} --pp {options.pp} divide it; take "
            "--strategy ddp or fsdp",
        ),
        (
            options.replicate is not None and traits.shards is False,
            f"--replicate is about a sharded model, and --strategy {name} does not shard; take --strategy fsdp",
        ),
        (
            options.offload != "none" and traits.shards is False,
            f"--offload {options.offload} works with a sharded model, and --strategy {name} does not shard; take --strategy "
            "fsdp",
        ),
        (
            (options.sequence_parallel or options.loss_parallel) and options.tp == 1,
            "--sequence-parallel and --loss-parallel need tensor parallelism; add --tp 2 or more",
        ),
        (options.pp == 1 and stages > 1, f"--stages-per-rank {stages} is about a pipeline; add --pp 2 or more"),
        (
            options.pp == 1 and options.schedule != ParallelOptions.schedule,
            f"--schedule {options.schedule} is a pipeline's; add --pp 2 or more",
        ),
        (
            options.pp > 1 and (stages != schedule.stages if schedule.is_fixed else stages < schedule.stages),
            f"--schedule {options.schedule} takes {schedule.stages} {'' if schedule.is_fixed else 'or more '}stages per rank, "
            f"not {stages}; leave --stages-per-rank out, or take another schedule",
        ),
        (
            options.pp > 1 and options.schedule in ("1f1b", "dualpipev") and micro_batches < options.pp * stages,
            f"--schedule {options.schedule} needs as many micro-batches as there are stages, and --micro-batches "
            f"{micro_batches} is less than {options.pp} × {stages}; take {options.pp * stages} or more",
        ),
        (
            options.pp > 1
            and "interleaved" in options.schedule
            and micro_batches % max(1, micro_batches // options.pp) > 0,
            f"--schedule {options.schedule} goes in rounds of {options.pp} micro-batches, and --micro-batches {micro_batches} "
            f"does not divide into them; take a multiple of {options.pp}",
        ),
        (
            options.pp > 1 and schedule.splits_backward and options.activation_checkpointing == "selective",
            f"--schedule {options.schedule} goes back through a layer twice, which torch's selective checkpointing does not "
            "bear; take --activation-checkpointing full",
        ),
        (
            options.pp > 1 and schedule.splits_backward and options.compile,
            f"--schedule {options.schedule} computes gradients of inputs and of weights at different times, and a compiled layer "
            "would compute both each time; take --schedule 1f1b, or leave out --compile",
        ),
        (
            options.comm_hook != "none" and (is_divided or not traits.hooks),
            f"--comm-hook {options.comm_hook} compresses what ddp and horovod exchange; leave it out with --strategy "
            f"{name}{' and a divided model' if is_divided else ''}",
        ),
        (
            options.comm_hook not in ("none", *traits.hooks),
            f"--strategy {name} compresses gradients to {' or '.join(traits.hooks)} only, not by {options.comm_hook}; take --comm-hook "
            f"{' or '.join(traits.hooks)}, or --strategy ddp",
        ),
        (
            options.sync_every != ParallelOptions.sync_every and not traits.is_local,
            f"--sync-every {options.sync_every} is local SGD's; take --strategy local-sgd",
        ),
        (
            options.outer_optimizer != "none" and not traits.is_local,
            f"--outer-optimizer {options.outer_optimizer} is local SGD's; take --strategy local-sgd",
        ),
        (
            options.precision == "fp16" and not traits.scales,
            f"--precision fp16 scales gradients, which --strategy {name} cannot; take bf16, or --strategy ddp",
        ),
    ]
