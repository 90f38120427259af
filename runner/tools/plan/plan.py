"""``python -m runner plan WORKLOAD``: which layouts fit the GPUs' memory, what each costs, and which one to take.

    python -m runner plan workloads.llama --size 7b --gpus 8 --memory 80GB
    python -m runner plan mywork --gpus 16 --nodes 2 --memory 40GB --pp 2
    python -m runner plan mywork --gpus 8 --memory 24G --plot m.png

It needs no GPU and no memory for the model: the model is made on torch's meta device, and a batch goes through it as
shapes. --batch-size and all other options of the workload count as in a run. A layout is a strategy (ddp, zero1,
fsdp) with tensor (--tp) and pipeline parallelism (--pp); those options, if given, restrict the list. Each is planned with
bf16, and with as little recomputation as lets it fit: --precision and --activation-checkpointing decide it otherwise.

Memory is that of the rank that needs most: its parameters, gradients, optimizer state, the activations and temporary
tensors of its passes, and what fsdp gathers from other ranks for the time being. What allocators and libraries take
comes on top: --reserve leaves a tenth. "sent" is per rank and step, in collectives counted as rings; a group of ranks on
several hosts counts as across hosts. "idle" is a pipeline's bubble. "samples/s" is an estimate, for the order of the list.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.base.quantities import positive, size, size_text
from runner.base.settings import add_options
from runner.command import Given, given_in
from runner.job import Job
from runner.parallel.settings import ParallelSettings
from runner.parsing import ALL, Parser, add_full_help, wants
from runner.tools.plan.layouts import PER_HOST, Candidate, Cluster, candidates
from runner.tools.report.output import check_output
from runner.tools.report.table import console, show_progress

_MOST = 4096  # GPUs among which it is looked for what fits


def plan(job: Job, argv: list[str]) -> None:
    """Plan, print a table, and write what was asked for.

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
    check_output(given.json, given.plot)
    cluster = Cluster.of(given.gpus, given.gpus // given.nodes if given.nodes else None)
    limit = given.memory * (1 - given.reserve / 100)
    for_workload = given_in(rest)
    wanted = for_workload.parallel_values()
    from runner.tools.plan.report import facts, print_table

    planner = _Planner(job, given.target, wanted, for_workload)
    from runner.tools.plan.capturing import fake_process_group
    from runner.tools.plan.ranking import advise, ranked

    with fake_process_group(max(cluster.gpus, _MOST)):
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
    if given.json:
        found = facts(plans, advice, limit=limit, count=count, trained=trained, left_out=dict(left_out))
        about = {"workload": given.target, "arguments": rest, "gpus": cluster.gpus, "hosts": cluster.hosts}
        text = json.dumps(about | {"memory": given.memory} | found, indent=1)
        Path(given.json).write_text(text + "\n", encoding="utf-8")
    if given.plot:
        from runner.tools.plan.plot import plot

        plot(title, plans, limit, given.plot)
    for path in filter(None, (given.json, given.plot)):
        print(f"wrote {path}")


def _parser(argv: Sequence[str]) -> Parser:
    parser = Parser(prog="python -m runner plan", description=__doc__)
    parser.add_argument("target", metavar="WORKLOAD", help="a module, for example workloads.mnist; then its options")
    parser.add_argument("--gpus", type=positive, required=True, metavar="N", help="in all; a rank has one")
    parser.add_argument(
        "--memory", type=size, required=True, metavar="SIZE", help="of each GPU: 80GB (× 10⁹), 80G or 80GiB (× 2³⁰)"
    )
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


class _Planner:
    """Plans the layouts of any cluster for one workload, whose model is followed once for each way that matters."""

    def __init__(self, job: Job, workload: str, wanted: Mapping[str, Any], given: Given) -> None:
        import torch

        from runner.parallel.batch_forms import parts_of
        from runner.tools.plan.capturing import capture
        from runner.tools.plan.optimizers import state_rule
        from runner.tools.plan.tracing import Tracer
        from runner.training.data.samples import look_at
        from runner.training.data.source import order_of, source_of, with_batch_of

        captured = capture(job, workload, given.without_parallel(_shaping(wanted)))
        self._task, self._options = captured.task, captured.options
        source = source_of(self._task)
        self._options = with_batch_of(source, self._options)
        if problem := look_at(source, 1, 0, sketches=False, check=parts_of).problem:
            raise problem
        order_of(source, 0, 1, self._options)
        own, dtype = self._options, getattr(torch, self._options.dtype)
        self._wanted = dict(wanted)
        if "precision" not in wanted and own.precision == "fp32" and dtype == torch.float32:
            self._wanted["precision"] = "bf16"
        units = self._task.plan.units(self._task.on_meta(dtype)) if self._task.plan.shard else []
        is_free = "activation_checkpointing" not in wanted and own.activation_checkpointing == "none"
        self._may_recompute = is_free and bool(units)
        self._global_batch = self._options.global_batch_size
        self._tracer = Tracer(self._task, own, dtype)
        self._costs: list[float] = []
        self._rule = state_rule(self._task.make_optimizer, self._tracer.model, dtype)

    def counts(self) -> tuple[int, int]:
        """How many parameters there are: all, and trained."""
        parameters = list(self._tracer.model.parameters())
        return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)

    def plans(self, cluster: Cluster, limit: float) -> tuple[list[Any], Counter[str]]:
        """The plans, and the reasons why layouts are left out.

        Raises:
            UsageError: no layout is possible.
        """
        own = self._options
        found, left_out = candidates(
            cluster, self._task.plan, own, self._wanted, batch=own.batch_size, global_batch=self._global_batch
        )
        plans = []
        for number, candidate in enumerate(found, 1):
            show_progress(f"{cluster.gpus} GPUs, {number} of {len(found)}: {candidate.name}")
            try:
                plans.append(self._plan(candidate, cluster, limit))
            except UsageError as error:
                left_out[str(error)] += 1
        show_progress("")
        if not plans:
            raise UsageError([*left_out][-1])  # of the model, which says more than those of layouts, which come first
        return plans, left_out

    def _plan(self, candidate: Candidate, cluster: Cluster, limit: float) -> Any:
        """With as little recomputation as lets it fit, or with the most."""
        from runner.tools.plan.planning import plan_layout

        for one in candidate.recomputing() if self._may_recompute else [candidate]:
            found = plan_layout(one, cluster, self._tracer, self._rule, self._costs_of_pieces(one))
            if found.memory.total <= limit:
                break
        return found

    def _costs_of_pieces(self, candidate: Candidate) -> list[float]:
        if candidate.options.pp == 1:
            return [1.0] * len(self._tracer.pieces)
        self._costs = self._costs or self._tracer.costs()
        return self._costs

    def enough(self, cluster: Cluster, limit: float) -> Any:
        """What fits on the smallest number of GPUs above the cluster's, with as many on each host; None if none is found.

        One host takes up to 8, and more are whole hosts.
        """
        each = cluster.per_host if cluster.hosts > 1 else PER_HOST
        sizes = [*range(cluster.gpus + 1, each), *range(each * (1 + cluster.gpus // each), _MOST + 1, each)]
        low, high, step, best = 0, 0, 1, None
        while high < len(sizes) and (best := self._fitting(sizes[high], cluster, limit)) is None:
            low, high, step = high + 1, high + step, 2 * step
        while best is not None and low < high:
            middle = (low + high) // 2
            if (found := self._fitting(sizes[middle], cluster, limit)) is not None:
                best, high = found, middle
            else:
                low = middle + 1
        return best

    def _fitting(self, gpus: int, cluster: Cluster, limit: float) -> Any:
        from runner.tools.plan.ranking import ranked

        wider = Cluster.of(gpus, cluster.per_host if cluster.hosts > 1 else None)
        try:
            best = ranked(self.plans(wider, limit)[0], wider, limit)[0]
        except UsageError:
            return None
        return best if best.memory.total <= limit else None


def _shaping(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of parallelism by which a workload may make another task; the others are this tool's."""
    shaping = {name: True for name in ("sequence_parallel", "loss_parallel") if wanted.get(name)}
    return shaping | {"tp": max(2, wanted.get("tp", 2))} if shaping else {}


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
