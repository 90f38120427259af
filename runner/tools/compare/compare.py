"""``python -m runner compare WORKLOAD``: train one workload by several engines, in turn, in one launch.

    mpirun -np 2 python -m runner compare workloads.resnet --engines ddp,horovod
    mpirun -np 4 python -m runner compare mywork --batch-size 64 --plot m.png

An engine is ddp (the runner's loop) or bare (DDP by hand, as in tutorials), with a backend after a colon, or horovod.
All have the same model, data and seed. A step's time is that of the slowest rank. "in communication" is a step's time
minus that of a step without any exchange; "hidden" is the share of the exchange that overlaps the backward pass.
Options that compare does not know are passed to the workload.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.comm.choice import network_backend, network_backends
from runner.comm.process_group import start_process_group
from runner.comm.table import backends
from runner.errors import UsageError, raised_on_all_ranks
from runner.job import Job
from runner.numbers import positive
from runner.options import Parser
from runner.parallel.mesh import Degrees, lay_out
from runner.tools.compare.plot import plot
from runner.tools.output import check_output
from runner.tools.table import Column, print_columns
from runner.tools.workloads import load_workload

if TYPE_CHECKING:
    from runner.tools.compare.turns import Turns

_MEASURED = [backend for backend in backends().values() if backend.is_measured]
BACKENDS = [backend.name for backend in _MEASURED if backend.is_process_group]
LIBRARIES = [backend.name for backend in _MEASURED if not backend.is_process_group]  # with a strategy of that name
KINDS = ("ddp", *LIBRARIES, "bare")
ALONE = "alone"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of an engine. Times in seconds, of the slowest rank; memory in bytes."""

    engine: str
    samples_per_s: float  # of all ranks, at the median step
    step: float  # median
    step_low: float  # 10th percentile
    step_high: float  # 90th percentile
    ratio: float  # first engine's step ÷ this one's, median over rounds: above 1 is faster
    ratio_low: float
    ratio_high: float
    communication: float  # step minus a step without any exchange
    exchange: float  # of all gradients, with nothing else running
    hidden: float | None  # share of the exchange that does not lengthen the step
    memory: int  # rise of the peak while the engine is built and does its first steps
    loss: float  # of the last step, mean over ranks
    ranks_agree: bool  # whether the weights are bit-equal on all ranks
    distance: float  # relative, from the first engine's weights


def compare(job: Job, argv: list[str]) -> None:
    """Measure, print a table, and write what was asked for.

    Raises:
        UsageError: an engine cannot be used here, or the target is not a workload.
    """
    parser = _parser()
    given, rest = parser.parse_known_args(argv)
    if given.target.startswith("-"):
        parser.error("name the workload first")
    engines = _engines(job, given.engines)
    module = load_workload(given.target, "compare")
    from runner.tools.compare.turns import Turns
    from runner.training.loop import Result
    from runner.training.run import Run

    start_process_group(replace(job, backend=network_backend(job)))
    layout = lay_out(job.topology, Degrees.of(job.size))
    plain_run = Run(job=job, workload=given.target, layout=layout)
    plain_run.on_main(lambda: check_output(given.json, given.plot))
    found: list[Turns] = []

    def train_by(run: Run, task: Any, options: Any) -> Result:
        found.append(Turns([*engines, (ALONE, "")], run, task, options, steps=given.steps, rounds=given.rounds))
        found[0].take()
        return Result(given.steps, 0.0, None, None)

    module.main(replace(plain_run, train_by=train_by), rest)
    if not found:
        with raised_on_all_ranks():
            raise UsageError(f"{given.target} trains without fit(), so its training cannot be taken over")
    comparisons = _comparisons(found[0])
    if job.rank == 0:
        _print(given.target, job, comparisons)
        if given.json:
            facts = {
                "workload": given.target,
                "arguments": rest,
                "ranks": job.size,
                "hosts": [len(host.ranks) for host in job.topology.hosts],
                "versions": {name: getattr(job.topology.records[0], name) for name in ("runner", "python", "torch")},
                "engines": [asdict(comparison) for comparison in comparisons],
            }
            Path(given.json).write_text(json.dumps(facts, indent=1) + "\n")
        if given.plot:
            plot(f"{given.target}, {job.size} ranks", comparisons[:-1], comparisons[-1], given.plot)
        for path in filter(None, (given.json, given.plot)):
            print(f"wrote {path}")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m runner compare",
        description=__doc__,
    )
    parser.add_argument("target", metavar="WORKLOAD", help="a module, for example workloads.mnist")
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        metavar="NAME,…",
        help=f"some of {', '.join(KINDS)}, ddp and bare with :{'|:'.join(BACKENDS)} (default: all that can be used)",
    )
    parser.add_argument("--steps", type=positive, default=60, help="that each engine does at least (default: 60)")
    parser.add_argument(
        "--rounds", type=positive, default=6, help="measurements per engine; the engines take turns (default: 6)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures as one JSON object")
    parser.add_argument("--plot", metavar="FILE.png", help="draw samples/s as bars (needs matplotlib)")
    return parser


@raised_on_all_ranks()
def _engines(job: Job, wanted: list[str] | None) -> list[tuple[str, str]]:
    """(kind, backend) of each engine: those asked for, or all that can be used.

    Raises:
        UsageError: one that was asked for cannot be used.
    """
    network = network_backend(job)
    if wanted is None:
        faster = [name for name in BACKENDS if name not in network_backends().values()]
        named = [
            *(("ddp", name) for name in (network, *faster)),
            *((name, "") for name in LIBRARIES),
            ("bare", network),
        ]
        return [(kind, backend) for kind, backend in named if not backends()[backend or kind].unavailable_reason(job)]
    engines = []
    for text in wanted:
        kind, _, backend = text.partition(":")
        if kind not in KINDS or (backend and backend not in BACKENDS) or (kind in LIBRARIES and backend):
            raise UsageError(
                f"--engines: no engine {text!r}; there are {', '.join(KINDS)}, ddp and bare with a backend: "
                f"{', '.join(f'ddp:{name}' for name in BACKENDS)}",
            )
        backend = "" if kind in LIBRARIES else backend or network
        if problem := backends()[backend or kind].unavailable_reason(job):
            raise UsageError(f"--engines {text}: {problem}")
        engines.append((kind, backend))
    return list(dict.fromkeys(engines))


def _comparisons(turns: Turns) -> list[Comparison]:
    """The results of all engines, ``alone`` last."""
    alone = statistics.median(turns.seconds((ALONE, "")))
    first = turns.engines[0]
    comparisons = []
    for engine in turns.engines:
        seconds = sorted(turns.seconds(engine))
        step, exchange = statistics.median(seconds), turns.exchange[engine]
        ratios = [
            statistics.median(one) / statistics.median(own)
            for one, own in zip(turns.rounds_of(first), turns.rounds_of(engine), strict=True)
        ]
        communication = max(0.0, step - alone)
        comparisons.append(
            Comparison(
                engine=":".join(filter(None, engine)),
                samples_per_s=turns.samples / step,
                step=step,
                step_low=seconds[len(seconds) // 10],
                step_high=seconds[-1 - len(seconds) // 10],
                ratio=statistics.median(ratios),
                ratio_low=min(ratios),
                ratio_high=max(ratios),
                communication=communication,
                exchange=exchange,
                hidden=min(1.0, max(0.0, 1 - communication / exchange)) if exchange else None,
                memory=turns.memory[engine],
                loss=turns.losses[engine],
                ranks_agree=turns.agree[engine],
                distance=turns.distance[engine],
            )
        )
    return comparisons


def _print(target: str, job: Job, comparisons: list[Comparison]) -> None:
    hosts = len(job.topology.hosts)
    title = f"{target}, {job.size} ranks on {hosts} host{'s' * (hosts > 1)}, {job.placement.device}"

    def column(title: str, text: Callable[[Comparison], str], spared: int = 0) -> Column:
        return Column(title=title, cells=[text(c) for c in comparisons], spared=spared)

    def of_exchange(text: Callable[[Comparison], str]) -> Callable[[Comparison], str]:
        return lambda c: "" if c.engine == ALONE else text(c)

    print_columns(
        title,
        [
            Column(title="engine\n", cells=[c.engine for c in comparisons], justify="left"),
            column("samples/s\n", lambda c: f"{c.samples_per_s:.1f}"),
            column("step\n(ms)", lambda c: f"{1e3 * c.step:.2f}"),
            column("10 % to\n90 % (ms)", lambda c: f"{1e3 * c.step_low:.2f} to {1e3 * c.step_high:.2f}", 4),
            column(f"vs\n{comparisons[0].engine}", lambda c: f"{c.ratio:.2f}"),
            column("lowest to\nhighest", lambda c: f"{c.ratio_low:.2f} to {c.ratio_high:.2f}", 3),
            column("in comm.\n(ms)", of_exchange(lambda c: f"{1e3 * c.communication:.2f}")),
            column("exchange\n(ms)", of_exchange(lambda c: f"{1e3 * c.exchange:.2f}"), 2),
            column("hidden\n", lambda c: "" if c.hidden is None else f"{100 * c.hidden:.0f} %"),
            column("memory\n(MiB)", lambda c: f"{c.memory / 2**20:.0f}", 1),
            column("last loss\n", lambda c: f"{c.loss:.6f}", 5),
            Column(title="weights\n", cells=[_agreement(c) for c in comparisons], justify="left"),
            column("off the\nfirst's", of_exchange(lambda c: f"{c.distance:.0e}" if c.distance else "0"), 6),
        ],
    )
    print(f"\n{ALONE}: every rank for itself, nothing is exchanged")


def _agreement(c: Comparison) -> str:
    if c.engine == ALONE:
        return ""
    return "ranks agree" if c.ranks_agree else "RANKS DIFFER"
