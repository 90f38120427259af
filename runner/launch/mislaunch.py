"""Refuse launches whose variables are valid but cannot be meant: ranks that would each train alone, or wait for ever."""

from __future__ import annotations

import time

from runner.base.command_name import COMMAND
from runner.base.errors import EXIT_USAGE, LaunchError, raised_on_all_ranks
from runner.launch.context import LaunchContext
from runner.launch.copies import starter_of_copies
from runner.launch.detect import detect, is_marked, tasks_of_job
from runner.launch.launcher_processes import ancestors, rank_starter, typed_in_a_shell
from runner.launch.launchers import SINGLE, launchers


def refuse_mislaunch(context: LaunchContext) -> None:
    """Refuse a launch in which this process would not train with the other ranks to the end, unless --launcher was given.

    Raises:
        LaunchError: it is such a launch; the message says how to start the ranks instead.
        SystemExit: the same, where a sibling process reports it.
    """
    if context.is_chosen:
        return
    if context.launcher == SINGLE:
        _refuse_lost_ranks(context)
        _refuse_copies(context)
    elif context.launcher.elastic in context.environment:
        with raised_on_all_ranks():
            _refuse_elastic_jobs(context)
    elif context.launcher.pty:
        _refuse_shell_of_srun(context)
    elif context.launcher.agents:
        with raised_on_all_ranks():
            _refuse_torchruns_alone(context)


def idle_tasks(context: LaunchContext) -> str:
    """A warning for a process that runs alone in a job of several tasks, else an empty string."""
    tasks = tasks_of_job(context.environment)
    if context.launcher != SINGLE or context.is_chosen or tasks < 2:
        return ""
    start = "srun or mpirun" if "SLURM_JOB_ID" in context.environment else "mpirun"
    return (
        f"this job has {tasks} tasks and one process runs; start with {start} {COMMAND} …, "
        "or say --launcher single if one is meant"
    )


def _refuse_lost_ranks(context: LaunchContext) -> None:
    """Refuse to run alone under a launcher whose variables did not arrive (a container that clears them, say)."""
    found = rank_starter(context.environment, context.process)
    if found is not None:
        parent, name = found
        line = [context.process, *(process.pid for process in ancestors(context.process))]
        own_branch = line[line.index(parent.pid) - 1]  # this process, or the shell around it
        if own_branch != min((child.pid for child in parent.children()), default=own_branch):
            time.sleep(1)  # the first end makes the launcher end all, and the reporting sibling prints first
            raise SystemExit(EXIT_USAGE)
        raise LaunchError(
            f"{name} (process {parent.pid}) started this process, but none of its rank variables is set, so "
            "every process would train alone",
            fix="let the variables through (a container's --cleanenv and env -i remove them)",
        )


def _refuse_copies(context: LaunchContext) -> None:
    """Refuse to be one of several processes of a job that have no rank."""
    if starter := starter_of_copies(context):
        raise LaunchError(
            f"{starter} started this process in a job, and not as one of N ranks, so every process would train alone",
            fix="start the ranks by mpirun or srun, which know the job's hosts, or give each its RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT",
        )


def _refuse_shell_of_srun(context: LaunchContext) -> None:
    """Refuse to be one rank of several in the shell of srun --pty: the other tasks' shells have ended at once."""
    if context.size.value > 1 and context.launcher.pty in context.environment and typed_in_a_shell():
        raise LaunchError(
            f"this shell is task {context.rank.value} of the {context.size.value} of srun --pty, and the other tasks run "
            f"nothing: start the ranks from here with srun --overlap {COMMAND} …, or take salloc in srun --pty's "
            f"place and then srun {COMMAND} …",
            fix="--launcher single runs one process",
        )


def _refuse_elastic_jobs(context: LaunchContext) -> None:
    """Refuse a job whose ranks may come and go: here all ranks meet once, and end with the first that fails."""
    raise LaunchError(
        f"elastic jobs are not supported: {context.launcher.title} would let the others continue after a rank has failed "
        f"({context.launcher.elastic}), and here all ranks end with it",
        fix=f"leave out --min-np, --max-np and --host-discovery-script, or start the program without the runner, or say --launcher "
        f"{context.launcher.name} for a job that ends with its first failure",
    )


def _refuse_torchruns_alone(context: LaunchContext) -> None:
    """Refuse several torchruns that a launcher started and that do not know of each other."""
    environment = context.environment
    outer = (row for row in launchers() if row.kind in context.launcher.nested_in and is_marked(row, environment))
    row = next(outer, None)
    if row is None or environment.get(context.launcher.agents) != "1":
        return
    if row.pty and row.pty in environment:
        return  # torchrun in the shell of srun --pty: allowed, as its workers have no terminal to check
    size = detect(environment, row.name).size
    if size.value > 1:
        raise LaunchError(
            f"{row.title} started {size.value} torchruns ({size.source}) and each is alone (GROUP_WORLD_SIZE=1), so "
            f"{size.value} trainings would run: leave torchrun out ({row.ranks_per_host.partition(' -')[0]} … {COMMAND} "
            f"…), or let one per node meet (torchrun --nnodes={size.value} --rdzv-backend=c10d "
            "--rdzv-endpoint=HOST:PORT …)"
        )
