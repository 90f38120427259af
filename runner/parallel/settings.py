"""How a model is trained in parallel: the settings, and what does not go together. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.quantities import positive, positive_float
from runner.base.settings import option
from runner.parallel.mesh import Degrees, Layout
from runner.parallel.registry import HOOKS, strategy_names, traits_of

PRECISIONS = ("fp32", "bf16", "fp16")
CHECKPOINTED = ("none", "full", "selective")
OUTER_OPTIMIZERS = ("none", "nesterov")
# What is decided before a workload is loaded, so that it has no defaults of its own for these.
LAYOUT = ("strategy", "tp", "pp", "replicate")


def advanced(default: Any, help: str, **about: Any) -> Any:
    """Return an option of the group ``parallel`` that only the full help shows."""
    return option(default, help, group="parallel", advanced=True, **about)


class Schedule(NamedTuple):
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
V_SCHEDULES = ("zbv", "dualpipev")  # a rank's second stage mirrors its first


@dataclass(frozen=True, kw_only=True)
class ParallelSettings:
    """Settings of how all ranks compute a step together; some do not go together, and are refused."""

    strategy: str = option(
        "ddp",
        "data parallelism: ddp or horovod (full replica), zero1 (sharded optimizer), fsdp (sharded parameters, gradients and "
        "optimizer), local-sgd (averages every --sync-every steps)",
        choices=strategy_names,
        metavar="NAME",
        group="parallel",
        changes=True,
    )
    tp: int = option(
        1, "tensor parallelism: N ranks share each layer", parse=positive, shows=None, group="parallel", changes=True
    )
    pp: int = option(
        1, "pipeline parallelism: N ranks share the layers", parse=positive, shows=None, group="parallel", changes=True
    )
    replicate: int | None = advanced(
        None,
        "with fsdp: N replicas of the model, each sharded within (near) ranks; otherwise there is one",
        parse=positive,
        metavar="N",
    )
    sequence_parallel: bool = advanced(False, "with --tp: shard the sequence between the sharded layers")
    loss_parallel: bool = advanced(False, "with --tp: compute the loss on each rank's share of the classes")
    micro_batches: int = option(
        None,
        "compute each batch in N parts, of a whole number of samples: with --pp they are in the pipeline at once (default: twice the "
        "stages), else gradients are accumulated (default: 1)",
        parse=positive,
        metavar="N",
        group="training",
        changes=True,
    )
    pp_schedule: str = advanced(
        "1f1b", f"schedule of the pipeline: {', '.join(SCHEDULES)}", choices=tuple(SCHEDULES), metavar="NAME"
    )
    stages_per_rank: int = advanced(
        None, "stages of the pipeline on each rank (default: as the schedule needs)", parse=positive, metavar="N"
    )
    activation_checkpointing: str = advanced(
        "none",
        "compute a layer's activations again in the backward pass: full, or selective, which keeps attention's results and every "
        "second linear layer's",
        choices=CHECKPOINTED,
        metavar="HOW",
    )
    offload: str = advanced("none", "with fsdp: keep parameters and optimizer in host memory", choices=("none", "cpu"))
    precision: str = option(
        "fp32", "compute in this type; parameters keep theirs", choices=PRECISIONS, group="training", changes=True
    )
    compile: bool = option(
        False, "compile the model layer by layer with torch.compile; needs a C++ compiler on CPUs", group="training"
    )
    comm_hook: str = advanced(
        "none",
        "compress gradients on the wire: fp16, bf16, powersgd; horovod has fp16 only",
        choices=HOOKS,
        metavar="HOW",
        changes=True,
    )
    clip_norm: float | None = option(
        None,
        "clip the gradients' norm at this value",
        parse=positive_float,
        metavar="NORM",
        group="training",
        changes=True,
    )
    sync_every: int = advanced(8, "with local-sgd: average every N steps", parse=positive, changes=True)
    outer_optimizer: str = advanced(
        "none",
        "with local-sgd: how the average is applied; nesterov makes it DiLoCo",
        choices=OUTER_OPTIMIZERS,
        changes=True,
    )

    @raised_on_all_ranks()
    def __post_init__(self) -> None:
        stages = self.stages_per_rank or (SCHEDULES[self.pp_schedule].stages if self.pp > 1 else 1)
        object.__setattr__(self, "stages_per_rank", stages)
        object.__setattr__(self, "micro_batches", self.micro_batches or (2 * self.pp * stages if self.pp > 1 else 1))
        if problem := next(
            (problem for is_wrong, problem in _of_strategy(self) + _of_pipeline(self) if is_wrong), None
        ):
            raise UsageError(problem)

    @property
    def stage_owners(self) -> list[int]:
        """Return, per stage, the pipeline index of the rank that has it. Some schedules go forth and back."""
        ranks = list(range(self.pp))
        if self.pp_schedule in V_SCHEDULES:
            return [*ranks, *reversed(ranks)]
        return ranks * self.stages_per_rank

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are sharded across data-parallel ranks; a third-party strategy's are if --replicate is given."""
        shards = traits_of(self.strategy).shards
        return self.replicate is not None if shards is None else shards

    @property
    def features(self) -> list[str]:
        """The rows of ``runner.versions.features.FEATURES`` that these settings use."""
        used = {
            "selective": self.activation_checkpointing == "selective",
            "tp": self.tp > 1,
            "fsdp": self.is_sharded,
            "sequence-parallel": self.sequence_parallel,
            "pp": self.pp > 1,
            "v-schedules": self.pp > 1 and self.pp_schedule in V_SCHEDULES,
        }
        return [name for name, is_used in used.items() if is_used]

    def features_in(self, layout: Layout) -> list[str]:
        """Return the further rows that these settings use with this layout of ranks."""
        is_model_parallel = self.tp > 1 or self.pp > 1
        used = {
            "replicas": is_model_parallel
            and not self.is_sharded
            and (layout.degrees.data > 1 or self.precision != "fp32"),
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
                fix="take fewer replicas, or --strategy ddp",
            )
        return degrees


def _of_strategy(options: ParallelSettings) -> list[tuple[bool, str]]:
    """Return what does not go with the strategy: (whether it is so here, what to say)."""
    name, traits = options.strategy, traits_of(options.strategy)
    is_model_parallel = options.tp > 1 or options.pp > 1
    return [
        (
            is_model_parallel and not traits.is_divisible,
            f"--strategy {name} has the full model on every rank, and --tp {options.tp} --pp {options.pp} shard it; take "
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
        (
            options.comm_hook != "none" and (is_model_parallel or not traits.hooks),
            f"--comm-hook {options.comm_hook} compresses what ddp and horovod exchange; leave it out with --strategy "
            f"{name}{' and a sharded model' if is_model_parallel else ''}",
        ),
        (
            options.comm_hook not in ("none", *traits.hooks),
            f"--strategy {name} compresses gradients to {' or '.join(traits.hooks)} only, not by {options.comm_hook}; take --comm-hook "
            f"{' or '.join(traits.hooks)}, or --strategy ddp",
        ),
        (
            options.sync_every != ParallelSettings.sync_every and not traits.is_local,
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


def _of_pipeline(options: ParallelSettings) -> list[tuple[bool, str]]:
    """Return what does not go with the pipeline's schedule, or without a pipeline: as above."""
    name, schedule, pp = options.pp_schedule, SCHEDULES[options.pp_schedule], options.pp
    stages, parts = options.stages_per_rank, options.micro_batches
    if pp == 1:
        is_named = name != ParallelSettings.pp_schedule
        return [
            (stages > 1, f"--stages-per-rank {stages} is about a pipeline; add --pp 2 or more"),
            (is_named, f"--pp-schedule {name} is a pipeline's; add --pp 2 or more"),
        ]
    return [
        (
            stages != schedule.stages if schedule.is_fixed else stages < schedule.stages,
            f"--pp-schedule {name} takes {schedule.stages} {'' if schedule.is_fixed else 'or more '}stages per rank, "
            f"not {stages}; leave --stages-per-rank out, or take another schedule",
        ),
        (
            name in ("1f1b", "dualpipev") and parts < pp * stages,
            f"--pp-schedule {name} needs as many micro-batches as there are stages, and --micro-batches "
            f"{parts} is less than {pp} × {stages}; take {pp * stages} or more",
        ),
        (
            "interleaved" in name and parts % max(1, parts // pp) > 0,
            f"--pp-schedule {name} goes in rounds of {pp} micro-batches, and --micro-batches {parts} "
            f"does not divide into them; take a multiple of {pp}",
        ),
        (
            schedule.splits_backward and options.activation_checkpointing == "selective",
            f"--pp-schedule {name} goes back through a layer twice, which torch's selective checkpointing does not "
            "support; take --activation-checkpointing full",
        ),
        (
            schedule.splits_backward and options.compile,
            f"--pp-schedule {name} computes gradients of inputs and of weights at different times, and a compiled layer "
            "would compute both each time; take --pp-schedule 1f1b, or leave out --compile",
        ),
    ]
