"""Requests of a job to its scheduler: the schedulers, and the requests that they do not take."""

from __future__ import annotations

import os
import shlex
import shutil
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.base.errors import EXIT_REQUEUE, UsageError
from runner.base.quantities import clock_text
from runner.launch.commands import MPIS, PALS, find_mpirun
from runner.launch.target import find_target
from runner.options.command import given_in
from runner.tools.jobscript.template import fill_in
from runner.tools.registry import tool_names, tool_of
from runner.training.settings import AUTO, shared_in


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """Facts about a scheduler besides its template in mpi_scripts/."""

    submit: str  # the program that reads a script from its standard input
    starters: tuple[str, ...]  # what can start the ranks (--mpi); the first is the default
    requeue: str = ""  # the directive that allows a job back into the queue
    lacks: Mapping[str, str] = field(default_factory=dict)  # option → what to do without it


SCHEDULERS = {
    "slurm": Scheduler(submit="sbatch", starters=("srun", *(mpi for mpi in MPIS if mpi != PALS)), requeue="--requeue"),
    "pbs": Scheduler(
        submit="qsub",
        starters=MPIS,
        lacks={
            "a GPU's type": "every site names it in its own way; leave it out, and choose by --queue, or write the script "
            "with -o and add what your site calls it to select=",
            "--requeue": "submit a chain of jobs, each with qsub -W depend=afternotok:JOB after the one before",
        },
    ),
    "lsf": Scheduler(
        submit="bsub",
        starters=("jsrun",),
        requeue=f"-Q {EXIT_REQUEUE}",
        lacks={
            "a GPU's type": "a job has the GPUs of its hosts; leave it out, and choose the hosts by --queue",
            "--memory": "a job has all the memory of its hosts; leave it out",
        },
    ),
}


def job_script(options: Namespace) -> str:
    """Return the script of a request. A tool that starts the ranks itself runs once in it.

    Raises:
        UsageError: the scheduler or the MPI is not found, or the request contradicts itself.
    """
    options.scheduler = options.scheduler or _scheduler_here()
    mpi = options.mpi or SCHEDULERS[options.scheduler].starters[0]
    _refuse_what_it_lacks(options, mpi)
    kind = find_target(options.target, form=options.form, tools=tool_names()).kind
    mpirun = _mpirun(mpi, has_modules=bool(options.modules)) if mpi in MPIS and mpi != PALS else ""
    given = shared_in(given_in(options.arguments), "resume", "requeue") if kind == "workload" else {}
    _refuse_requeue(options, kind, given)
    is_alone = not (options.form or tool_of(options.target).needs_rendezvous)
    target = [*filter(None, [options.form]), options.target, *options.arguments]
    if options.requeue and kind == "workload":
        for option in (["--resume", AUTO], _requeue_option(options)):
            if given.get(option[0].removeprefix("--").replace("-", "_")) in (None, False):
                target += option
    if options.gpus_per_node[1] and not is_alone:
        target = ["--device", options.site.device if options.site else "cuda", *target]
    requeue = SCHEDULERS[options.scheduler].requeue if options.requeue else ""
    return fill_in(options, mpi=mpi, mpirun=mpirun, requeue=requeue, target=target, starts_ranks=not is_alone)


def _scheduler_here() -> str:
    for name, scheduler in SCHEDULERS.items():
        if shutil.which(scheduler.submit):
            return name
    raise UsageError("--scheduler: none of sbatch, qsub and bsub is here", fix="name the one the script is for")


def _refuse_what_it_lacks(options: Namespace, mpi: str) -> None:
    gpu_type, gpus = options.gpus_per_node
    scheduler = SCHEDULERS[options.scheduler]
    if gpus and (options.ranks_per_node or 0) > gpus:
        raise UsageError(
            f"--ranks-per-node {options.ranks_per_node} and --gpus-per-node {gpus}: each rank needs a GPU of its own",
            fix="ask for as many",
        )
    for what, given in (("a GPU's type", gpu_type), ("--memory", options.memory), ("--requeue", options.requeue)):
        if given and what in scheduler.lacks:
            raise UsageError(f"--scheduler {options.scheduler} does not take {what}: {scheduler.lacks[what]}")
    if mpi not in scheduler.starters:
        raise UsageError(
            f"--mpi {mpi}: with --scheduler {options.scheduler} the ranks are started by {' or '.join(scheduler.starters)}",
            fix="choose that, or leave --mpi out",
        )


def _refuse_requeue(options: Namespace, kind: str, given: Mapping[str, Any]) -> None:
    """Refuse a target that would not continue when its job is queued again.

    Args:
        given: the target's own --resume and --requeue, if it is a workload.
    """
    scheduler = SCHEDULERS[options.scheduler]
    if options.requeue and kind == "tool":
        raise UsageError(
            f"--requeue: {options.target} is a tool, not a training",
            fix=f"leave it out; for supervise take --directive={shlex.quote(scheduler.requeue)}, and "
            f"{' '.join(_requeue_option(options))} after its workload",
        )
    if given.get("requeue") and options.scheduler != "slurm":
        raise UsageError(
            f"{options.target} --requeue asks Slurm, and --scheduler is {options.scheduler}",
            fix=scheduler.lacks.get("--requeue", "give it to jobscript, before the target"),
        )
    if options.requeue and (checkpoint := given.get("resume")) not in (None, "", AUTO):
        raise UsageError(
            f"--requeue: with --resume {checkpoint} each start begins there again",
            fix="take --resume auto, with that checkpoint's folder as --checkpoint-dir",
        )


def _requeue_option(options: Namespace) -> list[str]:
    """Return the option by which a workload saves before the job's time limit and asks to be queued again."""
    if options.scheduler == "slurm":
        return ["--requeue"]
    # LSF does not tell a job its end. The modules, jsrun and one interpreter per rank take some of the time.
    return ["--time-limit", clock_text(options.time_limit - min(300, options.time_limit // 10))]


def _mpirun(mpi: str, *, has_modules: bool) -> str:
    """Return the path of the mpirun found here, if it is this MPI's; "" for a job with modules, which uses theirs.

    Raises:
        UsageError: none is found, or it is another MPI's.
    """
    if has_modules and not os.environ.get("MPIRUN"):
        return ""
    path, found = find_mpirun(f"--mpi {mpi}")
    if found != mpi:
        raise UsageError(
            f"--mpi {mpi}: {path} is {found}'s",
            fix=f"load {mpi}'s module, name it with --module, or set MPIRUN=/path/of/mpirun",
        )
    return path
