"""A process that the runner has not started finds its job: its rank, the other ranks, its device. It has no guard.

What the guard and the command line do otherwise at the end of a rank is done here as far as one process can: an error is one line
and ends the rank with its exit code, so that the launcher ends the others; MPI is finalised only if all ranks come that far.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from runner.backends.process_group import stop_process_group
from runner.backends.shutdown import delete_globals, shutdown
from runner.base.environment import set_missing
from runner.base.errors import EXIT_FAILURE, EXIT_OK, Policy, RunnerError
from runner.guard.report.board import Board
from runner.job import Job
from runner.launch.context import LaunchContext
from runner.launch.detect import detect
from runner.launch.mislaunch import refuse_mislaunch
from runner.options.job_settings import JobSettings
from runner.rendezvous.methods.mpi_library import finalize_mpi
from runner.rendezvous.records.compatibility import compare_ranks
from runner.rendezvous.rendezvous import choose_way, rendezvous
from runner.starting.ending import outcome_of, refuse_launch
from runner.starting.join import job_of, place, record_of
from runner.torchrun.variables import settings

_ends: list[_End] = []  # of this process, once it is attached


def attach(asked: JobSettings) -> Job:
    """Find the launcher and meet the other ranks. Collective. Sets variables that are not set, as of threads and interface.

    Raises:
        RunnerError: the ranks could not meet, or do not run the same program.
        SystemExit: the launch is wrong, which a line has said.
    """
    try:
        context = detect(os.environ)
        refuse_mislaunch(context)
        way = choose_way(context)
    except RunnerError as error:
        refuse_launch(error)
    end = _End(context)
    _ends.append(end)
    record = record_of(context, sys.argv[0], _digest(), sys.argv[1:], asks_for_gpus=asked.device != "cpu")
    result = rendezvous(context, record, way=way, timeout=asked.timeout)
    topology = compare_ranks(result.records)
    placements = place(context, topology, asked.device, Policy.STRICT)
    board = Board()
    board.process = os.getpid()
    end.job = job = job_of(asked, context, result, topology, placements, board)
    set_missing(settings(job))
    if job.rank == 0:
        by = f"{job.size} ranks, started by {context.launcher.title}" if job.size > 1 else "one process"
        print(
            f"runner: {by}, without the runner's guard, which ends hangs and what is left of a failed job: python -m runner "
            f"{sys.argv[0] or 'script.py'} has it",
            file=sys.stderr,
            flush=True,
        )
    return job


def report_errors() -> None:
    """Report errors also after torch's process group is made, which has a hook of its own. Only in a process that is attached."""
    for end in _ends:
        sys.excepthook = end.fail


def _digest() -> str:
    """A hash of the script, which has to be the same on all ranks; "" if it is in no file, as in a notebook."""
    script = Path(sys.argv[0])
    return hashlib.sha256(script.read_bytes()).hexdigest() if script.is_file() else ""


class _End:
    """The end of the process: by its last line, by ``sys.exit()`` or by an exception."""

    def __init__(self, context: LaunchContext) -> None:
        self.job: Job | None = None
        self._context, self._process = context, os.getpid()
        self._code: Any = None  # of sys.exit()
        self._hook, self._exit = sys.excepthook, sys.exit
        sys.exit, sys.excepthook = self._note_exit, self.fail
        atexit.register(self._leave)

    def fail(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an exception that nobody has caught, in the place of torch's hook, which would lose what is printed."""
        if os.getpid() != self._process:  # a forked child, to which process group and MPI do not belong
            self._hook(kind, error, trace)
            return
        sys.excepthook = self._hook
        atexit.unregister(self._leave)
        outcome = outcome_of(error, self._context, self.job)
        shutdown(outcome.code, collective=outcome.is_collective and self.job is not None)

    def _note_exit(self, code: Any = None) -> NoReturn:
        self._code = code
        self._exit(code)

    def _leave(self) -> None:
        """The interpreter ends. With an error's code it leaves at once: MPI_Finalize() would wait for the others."""
        if os.getpid() != self._process:
            return
        if self._code not in (None, EXIT_OK):
            atexit.unregister(self._leave)
            shutdown(self._code if isinstance(self._code, int) else EXIT_FAILURE, collective=False)
        stop_process_group()
        delete_globals()  # a DDP model still has the group, whose threads may abort the interpreter's teardown
        finalize_mpi()
