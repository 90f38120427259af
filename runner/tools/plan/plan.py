"""``python -m runner plan WORKLOAD``: list the layouts that fit the GPUs' memory, the simplest first.

    python -m runner plan workloads.llama --size 7b --gpus 8 --memory 80GB
    python -m runner plan mywork --gpus 16 --nodes 2 --memory 40GB --pp 2
    python -m runner plan mywork --gpus 8 --memory 24G --json m.json

The tool needs no GPU and no memory for the model: it makes the model on torch's meta device, and follows a batch by its
shapes. --batch-size and all other options of the workload count as in a run. A layout is a strategy (ddp, zero1, fsdp) with
tensor parallelism (--tp) and pipeline parallelism (--pp); these options, if given, restrict the list. Each layout computes in
bf16, with the least recomputation by which it fits, unless --precision and --activation-checkpointing say otherwise.

The memory is that of the rank that needs most: its parameters, gradients, optimizer state, the activations and temporary
tensors of its passes, and the shards that fsdp gathers from other ranks. Allocators and libraries take more: --reserve leaves
a tenth for them. "idle" is the share of a step in which ranks wait in a pipeline. To learn how fast layouts are, take compare;
how fast more ranks are, scale.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.quantities import positive, size, size_text
from runner.base.settings import add_options
from runner.job import Job
from runner.options.command import given_in
from runner.options.parsing import ALL, Parser, add_full_help, wants
from runner.parallel.settings import ParallelSettings
from runner.tools.plan.layouts import Cluster
from runner.tools.tables.output import check_output
from runner.tools.tables.table import console


def plan(job: Job, argv: list[str]) -> None:
    """Plan, print a table, and write the files that were asked for.

    Raises:
        UsageError: an option is wrong, the target is not a workload, or no layout is possible.
    """
    parser = _parser(argv)
    given, rest = parser.parse_known_args(argv)
    if given.target.startswith("-"):
        parser.error("name the workload first")
    if given.nodes and given.gpus % given.nodes:
        raise UsageError(
            f"--nodes {given.nodes} does not divide --gpus {given.gpus}", fix="give --gpus a multiple of --nodes"
        )
    check_output(given.json, None)
    # After the checks, because these import torch.
    from runner.tools.plan.planner import MOST, Planner, fake_process_group
    from runner.tools.plan.ranking import reason
    from runner.tools.plan.report import as_json, print_table

    for_workload = given_in(rest)
    planner = Planner(job, given.target, for_workload.parallel_values(), for_workload)
    cluster = Cluster.of(given.gpus, given.gpus // given.nodes if given.nodes else None)
    limit = given.memory * (1 - given.reserve / 100)
    with fake_process_group(max(cluster.gpus, MOST)):
        plans, left_out = planner.plans(cluster, limit)
        fits = plans[0].memory.total <= limit
        why = reason(plans, limit, None if fits else planner.enough(cluster, limit))
    parameters = list(planner.model.parameters())
    count = sum(one.numel() for one in parameters)
    hosts = f" ({cluster.per_host} on each of {cluster.hosts} hosts)" if cluster.hosts > 1 else ""
    usable = f"{size_text(limit)} of {size_text(given.memory)} each" if given.reserve else f"{size_text(limit)} each"
    title = f"{given.target}: {count:,} parameters, {cluster.gpus} GPUs{hosts} with {usable}"
    print_table(title, plans, why, limit)
    _print_left_out(left_out)
    if given.json:
        facts = {
            "workload": given.target,
            "arguments": rest,
            "gpus": cluster.gpus,
            "hosts": cluster.hosts,
            "memory": given.memory,
            "usable": limit,
            "parameters": count,
            "trained": sum(one.numel() for one in parameters if one.requires_grad),
            "recommended": as_json(plans[0], limit) if fits else None,
            "reason": why,
            "layouts": [as_json(one, limit) for one in plans],
            "left_out": left_out,
        }
        Path(given.json).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {given.json}")


def _parser(argv: Sequence[str]) -> Parser:
    parser = Parser(prog="python -m runner plan", description=__doc__)
    parser.add_argument("target", metavar="WORKLOAD", help="a module, for example workloads.mnist; then its options")
    parser.add_argument("--gpus", type=positive, required=True, metavar="N", help="number of GPUs; each rank has one")
    parser.add_argument(
        "--memory", type=size, required=True, metavar="SIZE", help="GPU memory: 80GB (× 10⁹), 80G or 80GiB (× 2³⁰)"
    )
    parser.add_argument("--nodes", type=positive, metavar="N", help="number of hosts (default: up to 8 GPUs on each)")
    parser.add_argument(
        "--reserve",
        type=_percent,
        default=10.0,
        metavar="PERCENT",
        help="share of each GPU's memory kept for allocators and libraries (default: %(default)g)",
    )
    parser.add_argument("--json", metavar="FILE", help="write all layouts and figures as one JSON object")
    add_full_help(parser)
    if wants(argv, "-h", "--help", ALL):  # they are the workload's
        add_options(parser, ParallelSettings, show="all" if wants(argv, ALL) else "some")
    return parser


def _percent(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to below 100 percent")
    return number


def _print_left_out(left_out: Counter[str]) -> None:
    out = console()
    if left_out:
        out.print()
    for reason, number in left_out.items():
        out.print(f"left out: {number} layout{'s' * (number > 1)}: {reason}", style="dim")
