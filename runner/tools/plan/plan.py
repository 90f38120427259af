"""``python -m runner plan WORKLOAD``: which layouts fit the GPUs' memory, what each costs, and which one to take.

    python -m runner plan workloads.llama --size 7b --gpus 8 --memory 80GB
    python -m runner plan mywork --gpus 16 --hosts 2 --memory 40GB --pp 2
    python -m runner plan mywork --gpus 8 --memory 24G --plot m.png

It needs no GPU and no memory for the model: the model is made on torch's meta device, and a batch goes through it as
shapes. --batch-size and all other options of the workload count as in a run. A layout is a strategy (ddp, zero1,
fsdp) with tensor (--tp) and pipeline parallelism (--pp); those options, if given, restrict the list.

Memory is that of the rank that needs most: its parameters, gradients, optimizer state, the activations and temporary
tensors of its passes, and what fsdp gathers from other ranks for the time being. What allocators and libraries take
comes on top: leave a tenth. "sent" is per rank and step, in collectives counted as rings; a group of ranks on several
hosts counts as across hosts. "idle" is a pipeline's bubble.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.job import Job
from runner.numbers import positive
from runner.options import Parser
from runner.parallel.options import ParallelOptions, add_parallel_options
from runner.tools.output import check_output
from runner.tools.plan.layouts import Cluster, candidates
from runner.tools.plan.sizes import size, size_text
from runner.tools.table import console, show_progress

_LAYOUT = ("strategy", "tp", "pp", "replicate")


def plan(job: Job, argv: list[str]) -> None:
    """Plan, print a table, and write what was asked for.

    Raises:
        UsageError: an option is wrong, the target is not a workload, or no layout is possible.
    """
    parser = _parser()
    given, rest = parser.parse_known_args(argv)
    if given.target.startswith("-"):
        parser.error("name the workload first")
    if given.gpus % given.hosts:
        raise UsageError(
            f"--hosts {given.hosts} does not divide --gpus {given.gpus}", fix="give --gpus a multiple of --hosts"
        )
    check_output(given.json, given.plot)
    cluster = Cluster(gpus=given.gpus, hosts=given.hosts)
    wanted = {name: value for name, value in _parallel(given).items() if value is not None}
    from runner.tools.plan.report import facts, print_table

    plans, left_out, counts = _plans(job, given, wanted, rest, cluster)
    from runner.tools.plan.memory import PER_PARAMETER
    from runner.tools.plan.ranking import advise, ranked

    plans = ranked(plans, cluster, given.memory)
    advice = advise(plans, cluster, given.memory)
    hosts = f" on {cluster.hosts} hosts" if cluster.hosts > 1 else ""
    title = f"{given.target}: {counts[0]:,} parameters, {cluster.gpus} GPUs{hosts} with {size_text(given.memory)} each"
    print_table(title, plans, advice, given.memory)
    _print_remarks(counts[0], plans[0].problem, left_out)
    if given.json:
        found = facts(plans, advice, limit=given.memory, count=counts[0], trained=counts[1], left_out=dict(left_out))
        about = {"workload": given.target, "arguments": rest, "gpus": cluster.gpus, "hosts": cluster.hosts}
        Path(given.json).write_text(json.dumps(about | found, indent=1) + "\n")
    if given.plot:
        from runner.tools.plan.plot import plot

        plot(title, plans, given.memory, PER_PARAMETER * counts[0], given.plot)
    for path in filter(None, (given.json, given.plot)):
        print(f"wrote {path}")


def _parser() -> Parser:
    parser = Parser(prog="python -m runner plan", description=__doc__)
    parser.add_argument("target", metavar="WORKLOAD", help="a module, for example workloads.mnist; then its options")
    parser.add_argument("--gpus", type=positive, required=True, metavar="N", help="in all; a rank has one")
    parser.add_argument(
        "--memory", type=size, required=True, metavar="SIZE", help="of each GPU: 80GB (10⁹), 80GiB (2³⁰), 24G"
    )
    parser.add_argument(
        "--hosts", type=positive, default=1, metavar="N", help="among which the GPUs are divided (default: 1)"
    )
    parser.add_argument("--json", metavar="FILE", help="write all layouts and figures as one JSON object")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the memory of each layout (needs matplotlib)")
    add_parallel_options(parser)
    parser.set_defaults(**dict.fromkeys(_names()))  # what is not given is None
    return parser


def _names() -> list[str]:
    return [field.name for field in fields(ParallelOptions)]


def _parallel(given: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(given, name) for name in _names()}


def _plans(
    job: Job, given: argparse.Namespace, wanted: dict[str, Any], rest: Sequence[str], cluster: Cluster
) -> tuple[list[Any], Counter[str], tuple[int, int]]:
    """The plans, the reasons why layouts are left out, and how many parameters there are: all, and trained."""
    import torch

    from runner.tools.plan.capturing import capture, fake_process_group
    from runner.tools.plan.optimizers import state_rule
    from runner.tools.plan.planning import plan_layout
    from runner.tools.plan.tracing import Tracer

    captured = capture(job, given.target, [*rest, *_shaping(wanted)])
    task, options = captured.task, captured.options
    dtype = getattr(torch, options.dtype)
    found, left_out = candidates(
        cluster, task.plan, options.parallel, wanted, batch=options.batch_size, global_batch=_global_batch(rest)
    )
    tracer = Tracer(task, options.parallel, dtype)
    rule = state_rule(task.optimizer, tracer.model, dtype)
    costs = tracer.costs() if any(one.options.pp > 1 for one in found) else [1.0] * len(tracer.pieces)
    plans = []
    with fake_process_group(cluster.gpus):
        for number, candidate in enumerate(found, 1):
            show_progress(f"{number} of {len(found)}: {candidate.name}")
            try:
                plans.append(plan_layout(candidate, cluster, tracer, rule, costs))
            except UsageError as error:
                left_out[str(error)] += 1
    show_progress("")
    if not plans:
        raise UsageError(next(iter(left_out)))
    parameters = list(tracer.model.parameters())
    return plans, left_out, (sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad))


def _shaping(wanted: Mapping[str, Any]) -> list[str]:
    """The parallel options by which a workload may make another task; the others are this tool's."""
    flags = [f"--{name.replace('_', '-')}" for name in ("sequence_parallel", "loss_parallel") if wanted.get(name)]
    return [*flags, "--tp", str(max(2, wanted.get("tp", 2)))] if flags else []


def _global_batch(arguments: Sequence[str]) -> int | None:
    parser = Parser(add_help=False)
    parser.add_argument("--global-batch-size", type=positive)
    number: int | None = parser.parse_known_args(arguments)[0].global_batch_size
    return number


def _print_remarks(parameters: int, problem: str, left_out: Counter[str]) -> None:
    from runner.tools.plan.memory import PER_PARAMETER

    out = console()
    whole = size_text(PER_PARAMETER * parameters)
    out.print(
        f"\nby the rule of {PER_PARAMETER} bytes per parameter (Adam, fp32), the whole takes {whole}", markup=False
    )
    if problem:
        out.print(
            f"activations are that rule's 8 bytes per parameter, as the model cannot be followed ({problem})",
            markup=False,
        )
    for reason, number in left_out.items():
        out.print(f"left out: {number} layout{'s' * (number > 1)}: {reason}", style="dim", markup=False)
