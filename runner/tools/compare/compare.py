"""``python -m runner compare WORKLOAD``: train one workload by several engines, in turn, in one launch.

    mpirun -np 2 python -m runner compare workloads.resnet --engines ddp,horovod
    mpirun -np 4 … compare workloads.llama --engines fsdp:gloo,tp2:mpi4py
    mpirun -np 4 … compare mywork --engines pp2,pp2+pp-schedule=zbv
    mpirun -np 4 … compare mywork --engines ddp,local-sgd+sync-every=16

An engine is what divides the work, joined by +: a strategy (ddp, fsdp, zero1, local-sgd, horovod; without one: ddp), tpN,
ppN, and any other parallel option without its dashes; or it is bare (DDP by hand, as in tutorials). A backend may follow
after a colon. Options that compare does not know are passed to the workload, and count for all engines; of the parallel
ones bare knows --clip-norm, --compile and --precision bf16.

All have the same model, data and seed, and the same samples in each step: --batch-size is that of data parallelism over
all ranks, and where fewer ranks share the data, each takes more. A step's time is that of the slowest rank. "in comm." is
a step's time minus that of a step in which every rank trains its share alone: communication, and waiting.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
from argparse import SUPPRESS
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.backends.process_group import start_process_group
from runner.backends.selection import network_backend
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.quantities import positive
from runner.job import Job
from runner.options.command import given_in
from runner.options.parsing import Parser
from runner.parallel.settings import LAYOUT, ParallelSettings
from runner.tools.compare.choices import BACKENDS, KINDS, Choice, alone, chosen, supported
from runner.tools.compare.results import Comparison, plot_results, print_results
from runner.tools.tables.output import check_output
from runner.tools.workloads import load_workload, training_of

if TYPE_CHECKING:
    from types import ModuleType

    from runner.parallel.task import Task
    from runner.tools.compare.turns import Entrant, Turns
    from runner.training.run import Run
    from runner.training.settings import StepSettings

_LAYOUT = {name: getattr(ParallelSettings, name) for name in LAYOUT}


def compare(job: Job, argv: list[str]) -> None:
    """Measure, print a table, and write what was asked for.

    An engine that cannot be trained is a row that says so.

    Raises:
        UsageError: an engine cannot be used here, or none can be trained, or the target is not a workload.
    """
    parser = _parser()
    given, rest = parser.parse_known_args(argv)
    if given.target.startswith("-"):
        parser.error("name the workload first")
    in_file = given_in(rest).of_file(ParallelSettings)
    if given.layout or any(in_file.get(name, usual) != usual for name, usual in _LAYOUT.items()):
        parser.error(
            "--strategy, --tp, --pp and --replicate are parts of an engine's name here; for example --engines ddp,fsdp+tp2,pp2,"
            "fsdp+replicate=2"
        )
    choices = chosen(job, given.engines, rest)
    module = load_workload(given.target, "compare")
    from runner.tools.compare.turns import Turns
    from runner.training.data.feeds import with_batch_of
    from runner.training.data.source import source_of
    from runner.training.loop import Result
    from runner.training.run import Run
    from runner.training.same_task import check_task
    from runner.training.workload import call

    start_process_group(replace(job, backend=network_backend(job)))
    plain_run = Run(job=job, workload=given.target, layout=alone(job).layout)
    plain_run.on_main(lambda: check_output(given.json, given.plot))
    found: list[Turns] = []

    def train_by(run: Run, task: Any, options: Any) -> Result:
        options = with_batch_of(source_of(task), options)
        check_task(run, task, options)
        engines = supported(choices, options, asked_for=given.engines is not None)
        entrants = _entrants(module, run, task, options, [*engines, alone(job)], rest)
        found.append(Turns(run, entrants, steps=given.steps, rounds=given.rounds))
        found[0].take()
        return Result(given.steps, 0.0, None, None)

    call(module.main, replace(plain_run, train_by=train_by), rest)
    if not found:
        with raised_on_all_ranks():
            raise UsageError(f"{given.target} trains without fit(), so its training cannot be taken over")
    comparisons = _comparisons(found[0])
    problems = {entrant.choice.name: entrant.problem for entrant in found[0].entrants if entrant.problem}
    if job.rank == 0:
        print_results(given.target, job, found[0].samples, comparisons, problems)
        if given.json:
            facts = {
                "workload": given.target,
                "arguments": rest,
                "ranks": job.size,
                "hosts": [len(host.ranks) for host in job.topology.hosts],
                "samples_per_step": found[0].samples,
                "versions": {name: getattr(job.topology.records[0], name) for name in ("runner", "python", "torch")},
                "engines": [asdict(comparison) for comparison in comparisons],
                "not_trained": problems,
            }
            Path(given.json).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if given.plot:
            plot_results(f"{given.target}, {job.size} ranks", comparisons[:-1], comparisons[-1], given.plot)
        for path in filter(None, (given.json, given.plot)):
            print(f"wrote {path}")


def _parser() -> Parser:
    parser = Parser(prog="python -m runner compare", description=__doc__)
    parser.add_argument("target", metavar="WORKLOAD", help="a module, for example workloads.mnist")
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        metavar="NAME,…",
        help=f"each of {', '.join(KINDS)}, with +tpN, +ppN, +OPTION or +OPTION=VALUE, and :{'|:'.join(BACKENDS)} (default: ddp "
        "by all backends, Horovod and bare, as far as they can be used)",
    )
    parser.add_argument("--strategy", "--tp", "--pp", "--replicate", dest="layout", help=SUPPRESS)
    parser.add_argument("--steps", type=positive, default=60, help="steps per engine, at least (default: 60)")
    parser.add_argument(
        "--rounds", type=positive, default=6, help="measurements per engine; the engines take turns (default: 6)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures as one JSON object")
    parser.add_argument("--plot", metavar="FILE.png", help="draw samples/s as bars (needs matplotlib)")
    return parser


def _entrants(
    module: ModuleType, run: Run, task: Task, options: StepSettings, choices: Sequence[Choice], arguments: Sequence[str]
) -> list[Entrant]:
    """Return the task of each engine, with the options that a run of the workload has with the engine's flags.

    The data and the optimizer are the same for all, and so is the number of samples per step.

    Args:
        task: the workload's, with plain data parallelism over all ranks, and its ``options``.

    Raises:
        UsageError: a rank alone does not support an engine.
    """
    from runner.tools.compare.turns import Entrant
    from runner.training.data.feeds import with_batch_of
    from runner.training.data.source import source_of

    samples, source = options.batch_size * run.size, source_of(task)
    has_own_batches = source.loader is not None or source.kind == "batches"
    entrants = []
    for choice in choices:
        own_task, own_options, problem = task, options, ""
        if choice.flags:
            more = [] if has_own_batches else [f"--global-batch-size={samples}"]
            words = [*arguments, *choice.flags, *more]
            try:
                own_task, own_options = _captured(module, replace(run, layout=choice.layout), words)
                own_options = with_batch_of(source, own_options)
                own_task.check_stages(own_options)
            except UsageError as error:
                if not error.on_all_ranks:
                    raise
                problem = str(error)
            own_task = replace(own_task, train_data=task.train_data, optimizer=task.optimizer)
        entrants.append(Entrant(choice=choice, task=own_task, options=own_options, problem=problem))
    return entrants


def _captured(module: ModuleType, run: Run, arguments: Sequence[str]) -> tuple[Task, StepSettings]:
    """Return the training of a workload with these arguments. Its output has been printed before."""
    with contextlib.redirect_stdout(io.StringIO()):
        found = training_of(module, run, given_in(arguments))
    assert found is not None, "it has called fit() before"
    return found


def _comparisons(turns: Turns) -> list[Comparison]:
    """Return the results of all engines that could be trained, ``alone`` last."""
    entrants = [entrant for entrant in turns.entrants if not entrant.problem]
    by_itself, first = statistics.median(chain.from_iterable(entrants[-1].seconds)), entrants[0]
    comparisons = []
    for entrant in entrants:
        seconds = sorted(chain.from_iterable(entrant.seconds))
        step = statistics.median(seconds)
        ratios = [
            statistics.median(one) / statistics.median(own)
            for one, own in zip(first.seconds, entrant.seconds, strict=True)
        ]
        comparisons.append(
            Comparison(
                engine=entrant.choice.name,
                samples_per_s=turns.samples / step,
                step=step,
                step_low=seconds[len(seconds) // 10],
                step_high=seconds[-1 - len(seconds) // 10],
                ratio=statistics.median(ratios),
                communication=max(0.0, step - by_itself),
                memory=entrant.memory,
                loss=entrant.loss,
                ranks_agree=entrant.agree,
                distance=entrant.distance,
            )
        )
    return comparisons
