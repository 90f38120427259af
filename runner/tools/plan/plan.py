"""``python -m runner plan WORKLOAD``: which layouts fit the GPUs' memory, what each costs, and how fast it is on more ranks.

    python -m runner plan workloads.llama --size 7b --gpus 8 --memory 80GB
    python -m runner plan mywork --gpus 16 --nodes 2 --memory 40GB --pp 2
    python -m runner plan mywork --gpus 8 --memory 24G --plot m.png
    python -m runner plan mywork --ranks 8,64,512 --study s.json

It needs no GPU and no memory for the model: the model is made on torch's meta device, and a batch goes through it as
shapes. --batch-size and all other options of the workload count as in a run. A layout is a strategy (ddp, zero1,
fsdp) with tensor (--tp) and pipeline parallelism (--pp); those options, if given, restrict the list. Each is planned with
bf16, and with as little recomputation as lets it fit: --precision and --activation-checkpointing decide it otherwise.

Memory is that of the rank that needs most: its parameters, gradients, optimizer state, the activations and temporary
tensors of its passes, and what fsdp gathers from other ranks for the time being. What allocators and libraries take
comes on top: --reserve leaves a tenth. "sent" is per rank and step, in collectives counted as rings; a group of ranks on
several hosts counts as across hosts. "idle" is a pipeline's bubble. "samples/s" is an estimate, for the order of the list.

--ranks predicts a step's time on other numbers of ranks, in the layout that the options say, or that is recommended: by the
curve of a study, or by the layout's exchanges and links that bench has measured, or by data sheets. Below the table it says where
each figure comes from.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError
from runner.base.quantities import positive, positives, size, size_text
from runner.base.settings import add_options
from runner.command import given_in
from runner.job import Job
from runner.parallel.settings import ParallelSettings
from runner.parsing import ALL, Parser, add_full_help, wants
from runner.tools.plan.layouts import Cluster
from runner.tools.report.output import check_output
from runner.tools.report.table import console
from runner.training.metrics.datasheets import SHEETS

if TYPE_CHECKING:
    from runner.tools.plan.planner import Planner

_OF_PREDICTION = (
    "study",
    "bench",
    "backend",
    "compare",
    "hidden_share",
    "gpu",
    "utilisation",
    "ranks_per_node",
)  # take --ranks


def plan(job: Job, argv: list[str]) -> None:
    """Plan, predict, print tables, and write what was asked for.

    Raises:
        UsageError: an option or a file is wrong, the target is not a workload, or no layout is possible.
    """
    parser = _parser(argv)
    given, rest = parser.parse_known_args(argv)
    _check(parser, given)
    for_workload = given_in(rest)
    wanted = for_workload.parallel_values()
    content: dict[str, Any] = {"workload": given.target, "arguments": rest}
    planners: list[Planner] = []  # it takes a while to make one

    def planner() -> Planner:
        from runner.tools.plan.planner import Planner

        if not planners:
            planners.append(Planner(job, given.target, wanted, for_workload))
        return planners[0]

    if given.gpus:
        found, advised = _plan_layouts(given, planner())
        content |= found
        wanted = {**advised, **wanted}
    if given.ranks:
        content["prediction"] = _predict(given, wanted, planner)
    if given.json:
        Path(given.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for path in filter(None, (given.json, given.plot)):
        print(f"wrote {path}")


def _check(parser: Parser, given: argparse.Namespace) -> None:
    """Check what argparse does not.

    Raises:
        UsageError: an option is wrong.
    """
    if given.target.startswith("-"):
        parser.error("name the workload first")
    missing = [name for name in ("gpus", "memory") if getattr(given, name) is None]
    if len(missing) == 1 or (missing and not given.ranks):
        more = "" if given.ranks else "; or --ranks, to predict how long a step takes"
        parser.error(f"the following arguments are required: {', '.join(f'--{name}' for name in missing)}{more}")
    for name in ("nodes", "plot"):
        if getattr(given, name) and missing:
            parser.error(f"--{name} takes --gpus")
    for name in _OF_PREDICTION:
        if getattr(given, name) and not given.ranks:
            parser.error(f"--{name.replace('_', '-')} takes --ranks")
    if given.nodes and given.gpus % given.nodes:
        raise UsageError(
            f"--nodes {given.nodes} does not divide --gpus {given.gpus}", fix="give --gpus a multiple of --nodes"
        )
    check_output(given.json, given.plot)


def _plan_layouts(given: argparse.Namespace, planner: Planner) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan the layouts, and print them. Returns what goes into the JSON file, and the options of the recommended one."""
    from runner.tools.plan.capturing import fake_process_group
    from runner.tools.plan.planner import MOST
    from runner.tools.plan.ranking import advise, ranked
    from runner.tools.plan.report import facts, print_table

    cluster = Cluster.of(given.gpus, given.gpus // given.nodes if given.nodes else None)
    limit = given.memory * (1 - given.reserve / 100)
    with fake_process_group(max(cluster.gpus, MOST)):
        plans, left_out = planner.plans(cluster, limit)
        plans = ranked(plans, cluster, limit)
        enough = planner.enough(cluster, limit) if plans[0].memory.total > limit else None
    advice = advise(plans, cluster, limit, enough=enough)
    count, trained = planner.counts()
    hosts = f" ({cluster.per_host} on each of {cluster.hosts} hosts)" if cluster.hosts > 1 else ""
    usable = f"{size_text(limit)} of {size_text(given.memory)} each" if given.reserve else f"{size_text(limit)} each"
    title = f"{given.target}: {count:,} parameters, {cluster.gpus} GPUs{hosts} with {usable}"
    print_table(title, plans, advice, limit)
    _print_remarks(plans[0].problem, left_out)
    if given.plot:
        from runner.tools.plan.plot import plot

        plot(title, plans, limit, given.plot)
    about = {"gpus": cluster.gpus, "hosts": cluster.hosts, "memory": given.memory}
    found = facts(plans, advice, limit=limit, count=count, trained=trained, left_out=dict(left_out))
    return about | found, planner.options_of(advice.planned)


def _predict(given: argparse.Namespace, wanted: dict[str, Any], planner: Callable[[], Planner]) -> dict[str, Any]:
    """Predict a step's time for each number of ranks, and print it. Returns what goes into the JSON file."""
    from runner.tools.costs.study import read_study
    from runner.tools.plan.capturing import fake_process_group
    from runner.tools.plan.planner import MOST
    from runner.tools.plan.predicted_report import as_json, print_outlook

    study = read_study(Path(given.study)) if given.study else None
    if study is not None and study.target != given.target:
        raise UsageError(f"{given.study} is a study of {study.target}, not of {given.target}", fix="name its target")
    if study is not None and not given.bench and not given.gpu:
        from runner.tools.plan.by_curve import by_curve

        settings = ParallelSettings(**wanted)
        found = by_curve(given, study, settings.degrees)
    else:
        from runner.tools.plan.by_links import ByLinks

        made = planner()
        with fake_process_group(max(*given.ranks, MOST)):
            found = ByLinks(given, wanted, made, study).outlook()
    print_outlook(given.target, found)
    return as_json(found)


def _parser(argv: Sequence[str]) -> Parser:
    parser = Parser(prog="python -m runner plan", description=__doc__)
    parser.add_argument("target", metavar="WORKLOAD", help="a module, for example workloads.mnist; then its options")
    parser.add_argument("--gpus", type=positive, metavar="N", help="in all; a rank has one")
    parser.add_argument("--memory", type=size, metavar="SIZE", help="of each GPU: 80GB (× 10⁹), 80G or 80GiB (× 2³⁰)")
    parser.add_argument(
        "--nodes", type=positive, metavar="N", help="among which the GPUs are divided (default: up to 8 GPUs on each)"
    )
    parser.add_argument(
        "--reserve",
        type=_percent,
        default=10.0,
        metavar="PERCENT",
        help="of each GPU's memory, for allocators and libraries (default: %(default)g)",
    )
    parser.add_argument("--json", metavar="FILE", help="write all layouts and figures as one JSON object")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the memory of each layout (needs matplotlib)")
    _add_options_of_prediction(parser)
    add_full_help(parser)
    if wants(argv, "-h", "--help", ALL):  # they are the workload's
        add_options(parser, ParallelSettings, show="all" if wants(argv, ALL) else "some")
    return parser


def _add_options_of_prediction(parser: Parser) -> None:
    group = parser.add_argument_group("how long a step takes on other numbers of ranks")
    group.add_argument(
        "--ranks",
        type=positives,
        metavar="N,…",
        help="predict it for these, in the layout that the options say, or that is recommended for --gpus",
    )
    group.add_argument("--study", metavar="FILE", help="what scale --json has written: measured steps of this target")
    group.add_argument(
        "--bench",
        action="append",
        default=[],
        metavar="FILE",
        help="what bench --json has written, on one host and on several: a file each, or one",
    )
    group.add_argument(
        "--backend", metavar="NAME", help="whose times in them count (default: a run's, nccl, mpi4py or gloo)"
    )
    group.add_argument(
        "--compare", metavar="FILE", help="what compare --json has written: how much of an exchange is hidden"
    )
    group.add_argument(
        "--hidden-share",
        type=_share,
        metavar="SHARE",
        help="of the exchange, behind computing, where --compare does not say it (default: 0.5, a guess)",
    )
    group.add_argument(
        "--gpu", choices=[*SHEETS], help="whose data sheet counts for what was not measured (default: H100)"
    )
    group.add_argument(
        "--utilisation",
        type=_share_above_0,
        metavar="SHARE",
        help="of that data sheet's peak, which computing reaches (default: 0.4)",
    )
    group.add_argument(
        "--ranks-per-node", type=positive, metavar="N", help="(default: as it was measured, else up to 8)"
    )


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return number


def _share_above_0(text: str) -> float:
    if number := _share(text):
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0")


def _percent(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to below 100 percent")
    return number


def _print_remarks(problem: str, left_out: Counter[str]) -> None:
    out = console()
    if problem or left_out:
        out.print()
    if problem:
        out.print(
            f"activations are estimated as 8 bytes per parameter, as the model cannot be followed ({problem})",
            markup=False,
        )
    for reason, number in left_out.items():
        out.print(f"left out: {number} layout{'s' * (number > 1)}: {reason}", style="dim", markup=False)
