"""``python -m runner scale TARGET``: does it scale? Train a workload or a script on several numbers of ranks, in turn, in one launch.

    mpirun -np 8 --map-by ppr:4:node python -m runner scale workloads.resnet
    mpirun -np 8 … scale workloads.resnet --ranks 1,8 --scaling strong
    mpirun -np 8 … scale --batch-size 32 --plot study.png train.py --lr 0.1
    python -m runner scale --plot both.png ddp.json fsdp.json

Each size trains on the first ranks, whole hosts first, with the threads of the whole launch; the other ranks wait without using a
core. In strong scaling the batch of all ranks stays, in weak scaling that of a rank. A step is a call of an optimizer's step, so a
script needs no change. What stands after a script's name is its own; the samples of a rank's step are told before it by --batch-size,
else speeds are in steps. Sizes take turns over rounds, until the 95 % interval of each step's time is narrow
enough, or the time is over. The parts of a step come from a few steps after the timed ones.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from argparse import REMAINDER, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.base.quantities import positive, positive_float, positives
from runner.base.settings import add_options, as_words
from runner.command import FORMS
from runner.job import Job
from runner.job_settings import JobSettings
from runner.launch.target import AS_MODULE, is_path
from runner.measuring.facts import facts_of
from runner.measuring.measured_run import StepsWanted
from runner.parsing import Parser
from runner.tools.costs.study import STRONG, WEAK, Size, Study, read_study
from runner.tools.job_scripts.script import add_request
from runner.tools.report.output import check_output
from runner.tools.report.table import show_progress
from runner.tools.scale.jobs import JobRow, collect, write_jobs
from runner.tools.scale.rows import judge, planned, take, take_without_data
from runner.tools.scale.tables import print_study, write_study

_OF_RUNS = (
    "backend",
    "device",
    "timeout",
    "collective_timeout",
    "hang_timeout",
    "share_import",
)  # options that runs may be given
_TARGET = "a workload, or a script with its own words after it; or the JSON files of studies, to draw them"
_LONGEST = 1800.0  # seconds for a run, or as many as the study may take
_MOST = 10 * 86400.0  # seconds: twice as many milliseconds are the most that a store takes
_PROFILED = 5  # steps
_MOST_ROUNDS = 20


def scale(job: Job, argv: list[str]) -> None:
    """Measure, or submit, or collect; print a table, and write what was asked for.

    Raises:
        UsageError: a size is beyond the launch, a file cannot be written or is no study.
        RunnerError: no size has been measured.
    """
    given, rest = _parse(argv)
    with raised_on_all_ranks():
        if job.rank == 0:
            check_output(given.json, None if _is_study(given.plot) else given.plot, csv=given.csv, latex=given.latex)
    if given.collect:
        study = collect(given.collect)
    elif (is_plot := _is_study(given.target) or _is_study(given.plot)) or given.nodes:
        if job.rank == 0:
            _plot_studies(given, rest) if is_plot else _write_jobs(job, given, rest)
        return
    else:
        study = _measured_here(job, given, rest)
    if job.rank == 0:
        print_study(study)
        write_study(study, given)
    if not any(size.rounds for size in study.sizes):
        with raised_on_all_ranks():
            raise RunnerError("no size has been measured", fix="see the causes above")


def _parse(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """The options, with the target's form and name, and the words that are the target's.

    What stands after a script is the script's, also where it is called as an option here.
    """
    parser = _parser()
    # Target and words are one: if they were two, argparse would take options from among the words.
    parser.add_argument("command", nargs=REMAINDER, metavar="TARGET", help=_TARGET)
    given = parser.parse_args(argv)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    given.target, *rest = command or [""]
    if not (given.target or given.collect or _is_study(given.plot)):
        parser.error("name a workload or a script; for example workloads.resnet or train.py")
    if given.form or is_path(given.target):
        return given, rest
    return _parser().parse_known_args(rest, given)


def _is_study(path: str | None) -> bool:
    return path is not None and path.endswith(".json")


def _plot_studies(given: Namespace, rest: Sequence[str]) -> None:
    """Draw several studies into one picture."""
    from runner.tools.scale.plot import plot

    paths = [Path(one) for one in (given.plot, given.target, *rest) if one and (one != given.plot or _is_study(one))]
    picture = "scale.png" if given.plot is None or _is_study(given.plot) else given.plot
    check_output(None, picture)
    studies = [read_study(path) for path in paths]
    plot(studies, [path.stem for path in paths], picture)
    print(f"wrote {picture}")


def _wanted_steps(given: Namespace) -> StepsWanted:
    return StepsWanted(warmup=given.warmup, steps=given.steps, profiled=_PROFILED)


def _plans(given: Namespace, sizes: Sequence[int], rest: Sequence[str]) -> list[tuple[Size, tuple[str, ...]]]:
    return planned(
        [*filter(None, [given.form]), given.target],
        rest,
        sizes,
        scaling=given.scaling,
        batch_size=given.batch_size,
        global_batch_size=given.global_batch_size,
    )


def _options(given: Namespace) -> list[str]:
    """The runner's options for the runs."""
    return as_words(JobSettings, {name: value for name, value in vars(given).items() if name in _OF_RUNS})


def _write_jobs(job: Job, given: Namespace, rest: Sequence[str]) -> None:
    each = given.ranks_per_node or given.gpus_per_node[1] or 1
    plans = _plans(given, [nodes * each for nodes in given.nodes], rest)
    rows = [JobRow(size=size, nodes=size.ranks // each, words=words) for size, words in plans]
    for size in (row.size for row in rows if row.size.problem):
        print(f"{size.ranks} {size.scaling}: no job: {size.problem}")
    write_jobs(rows, _wanted_steps(given), _options(given), given, job.context.environment, _command())
    print(f"when they are done: python -m runner scale --collect {given.folder}")


def _measured_here(job: Job, given: Namespace, rest: Sequence[str]) -> Study:
    """In this launch. Collective."""
    with raised_on_all_ranks():
        plans = _plans(given, _sizes(given.ranks, job.size), rest)
    import torch.distributed as dist

    from runner.backends.process_group import start_process_group
    from runner.tools.scale.in_launch import JobsInTurn

    longest = min(max(_LONGEST, 60 * given.minutes), _MOST)
    # Ranks that are in no run wait for those that are.
    start_process_group(replace(job, backend="gloo", collective_timeout=2 * longest))
    launch, options = JobsInTurn(job), _options(given)
    end = time.monotonic() + 60 * given.minutes
    for number in range(_MOST_ROUNDS):
        for size, words in plans:
            wanted = [job.rank == 0 and _is_wanted(size, number, given, end)]
            dist.broadcast_object_list(wanted, src=0)
            if not wanted[0]:
                continue
            if job.rank == 0:
                show_progress(f"{size.scaling} scaling, {size.ranks} ranks, round {number + 1}")
            request = replace(_wanted_steps(given), profiled=0 if number else _PROFILED)
            ran = launch.run(size.ranks, request, (*options, *words), longest)
            if ran is not None and ran.problem:
                size.problem = ran.problem
            elif ran is not None:
                take(size, ran.ranks)
                size.others = max(size.others, ran.others)
            wanted = [number == 0 and size.waits_for_data]
            dist.broadcast_object_list(wanted, src=0)
            if wanted[0]:
                request = replace(_wanted_steps(given), profiled=0, fixed_data=True)
                ran = launch.run(size.ranks, request, (*options, *words), longest)
                if ran is not None:
                    take_without_data(size, ran.ranks, ran.problem)
    sizes = [size for size, _ in plans]
    for size in sizes:
        size.hosts = launch.hosts(size.ranks)
    if job.rank == 0:
        show_progress("")
        judge(sizes, os.cpu_count() or 1)
    measured = [sizes]
    dist.broadcast_object_list(measured, src=0)
    return Study(target=given.target, sizes=measured[0], command=_command(), facts=facts_of(job))


def _command() -> str:
    """Of this study, as a reader would type it."""
    return shlex.join(["python", "-m", "runner", *sys.argv[1:]])


def _is_wanted(size: Size, number: int, given: Namespace, end: float) -> bool:
    """Whether a size has one more round."""
    if size.problem:
        return False
    if number < given.rounds and (number == 0 or time.monotonic() < end):
        return True
    return size.uncertainty > given.interval * size.seconds and time.monotonic() < end


def _sizes(asked: Sequence[int] | None, most: int) -> list[int]:
    """The numbers of ranks: as asked, else the powers of two and all ranks.

    Raises:
        UsageError: there are not so many ranks.
    """
    if asked is None:
        asked = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    if beyond := [one for one in asked if one > most]:
        raise UsageError(
            f"--ranks {','.join(map(str, asked))}: this launch has {most} rank{'s' * (most > 1)}, and {beyond[0]} are asked for",
            fix=f"start {max(asked)}, or leave {beyond[0]} out",
        )
    return sorted(dict.fromkeys(asked))


def _parser() -> Parser:
    parser = Parser(prog="python -m runner scale", description=__doc__)
    parser.add_argument(
        AS_MODULE, dest="form", action="store_const", const=AS_MODULE, default="", help=FORMS[AS_MODULE]
    )
    parser.add_argument("--ranks", type=positives, metavar="N,…", help="the sizes (default: 1, 2, 4, … and all ranks)")
    parser.add_argument(
        "--scaling",
        choices=(STRONG, WEAK, "both"),
        default="both",
        help="of a workload (default: both); a script's is weak, as it has its own batch",
    )
    parser.add_argument("--batch-size", type=positive, metavar="N", help="samples of a rank per step")
    parser.add_argument(
        "--global-batch-size", type=positive, metavar="N", help="samples of all ranks per step, in strong scaling"
    )
    parser.add_argument("--steps", type=positive, default=100, help="that a run is timed for (default: 100)")
    parser.add_argument("--warmup", type=positive, default=10, help="steps before them (default: 10)")
    parser.add_argument("--rounds", type=positive, default=3, help="runs of each size at least (default: 3)")
    parser.add_argument(
        "--interval", type=positive_float, default=0.03, help="that is narrow enough (default: 0.03, of a step)"
    )
    parser.add_argument(
        "--minutes", type=positive_float, default=20.0, help="after which no more rounds begin (default: 20)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the study, which --plot reads")
    parser.add_argument("--csv", metavar="FILE", help="write the table")
    parser.add_argument("--latex", metavar="FILE", help="write the table, for booktabs")
    parser.add_argument("--plot", metavar="FILE.png", help="draw it (needs matplotlib)")
    parser.add_argument(
        "--nodes",
        type=positives,
        metavar="N,…",
        help="write a job script for each of these numbers of nodes, in --folder",
    )
    parser.add_argument("--submit", action="store_true", help="and hand them to the scheduler")
    parser.add_argument(
        "--folder", default="scale", metavar="DIR", help="of the jobs, on a file system of all (default: scale)"
    )
    parser.add_argument("--collect", type=Path, metavar="DIR", help="put together what such jobs have left")
    add_request(parser, title="what each job of --nodes asks its scheduler for")
    add_options(parser, JobSettings, only=_OF_RUNS, show="none")
    return parser
