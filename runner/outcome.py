"""How a run ends: which rank says what, with which exit code, and what is said of the end by its guard."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

import runner.dispatch
from runner.comm.ended import ended_ranks
from runner.errors import EXIT_FAILURE, EXIT_OK, RunnerError
from runner.guard.watch import Lifeline, Words
from runner.job import Job
from runner.launch.context import LaunchContext
from runner.launch.detect import is_reporting
from runner.options import Request
from runner.rendezvous.mpi_library import library_of_launcher
from runner.rendezvous.rendezvous import Way
from runner.rendezvous.topology import ranks_text
from runner.shutdown import shutdown

# What gloo, NCCL and the store say on the ranks that are left when one has gone.
_ECHOES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "ncclRemoteError")
_UNREPORTED = 2.0  # seconds after which a rank says itself what rank 0 should have said
_INTERRUPTED = 130  # 128 + SIGINT


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the worker's part has ended."""

    code: int
    is_collective: bool  # all ranks come to this end, so that they can leave their group and MPI together
    is_bounded: bool = True  # the guard ends the process where its end takes long; not where the program chose to end


SUCCESS = Outcome(code=EXIT_OK, is_collective=True)


def refuse_launch(error: RunnerError) -> NoReturn:
    """End a process that cannot start, from before its rank is known."""
    _say_once(error, is_reporting(os.environ), "")
    sys.exit(error.exit_code)


def outcome_of(error: BaseException, context: LaunchContext, job: Job | None) -> Outcome:
    """What an exception of the worker comes to. Says so, where that is this rank's to say."""
    if isinstance(error, SystemExit):
        code = _exit_code_of(error)
        if code != EXIT_OK and context.size.value > 1:
            print(f"runner: {context.label} ended with code {code}", file=sys.stderr, flush=True)
        # On purpose: the program's exit handlers may take what they need.
        return Outcome(code=code, is_collective=code == EXIT_OK, is_bounded=False)
    if isinstance(error, KeyboardInterrupt):
        return Outcome(code=_INTERRUPTED, is_collective=False)
    if isinstance(error, RunnerError):
        is_one_ranks = not error.on_all_ranks and context.size.value > 1
        _say_once(error, context.rank.value == 0, f"{context.label}: " if is_one_ranks else "")
        return Outcome(code=error.exit_code, is_collective=error.on_all_ranks)
    _tell_failure(error, context, job)
    return Outcome(code=EXIT_FAILURE, is_collective=False)


def end_worker(outcome: Outcome, lifeline: Lifeline, job: Job | None) -> NoReturn:
    """End this process, and let its guard know."""
    if os.getpid() != lifeline.worker:
        shutdown(outcome.code, collective=False)  # a child that the program has forked: group and MPI are its parent's
    if outcome.code != EXIT_OK and outcome.is_bounded:
        lifeline.failed(outcome.code)  # from here on the guard bounds every wait
    shutdown(outcome.code, collective=outcome.is_collective, job=job if outcome.code == EXIT_OK else None)


def guard_words(context: LaunchContext, request: Request, way: Way) -> Words:
    """What the guard says of the worker."""
    return Words(
        label=context.label,
        no_meeting=lambda code: _why_no_rendezvous(context, request, way, code),
        speaks=context.rank.value == 0,
        # Open MPI 5's mpirun (PRRTE) drops what its ranks say once it has been told to end.
        is_shown_to_the_end="PRTE_LAUNCHED" not in context.environment,
        to_go_on="go on from its last checkpoint with --resume" if request.may_be_workload else "",
    )


def _why_no_rendezvous(context: LaunchContext, request: Request, way: Way, code: int | None) -> str:
    """Why a worker was not in time, or has ended with a code and no message of ours."""
    if code is not None:
        library = library_of_launcher() or "/path/of/your/mpirun's/lib/libmpi.so"
        hint = f"; MPI ended it, perhaps as it is not {context.launcher.title}'s: MPI4PY_LIBMPI={library}"
        return f"ended with code {code} before the ranks had met{hint if way.name == 'mpi' else ''}"
    reason = "a rank has not started, or cannot be reached"
    if way.name == "mpi":
        reason = f"MPI_Init or the first MPI collective did not end: {reason}"
    return (
        f"the {context.size.value} ranks did not meet within {request.timeout:.0f} s (by {way.name}); {reason}; "
        "allow more with --timeout"
    )


def _say_once(error: RunnerError, first: bool, label: str) -> None:
    """Print one line. Where all ranks know it rank 0 says it; the others step in if the job goes on without it."""
    if not first:
        # Whoever ends first has the launcher end the others, so rank 0 is given time to speak. MPI's end waits for it.
        if not (error.on_all_ranks and "mpi4py.MPI" in sys.modules):
            time.sleep(_UNREPORTED)
        if error.on_all_ranks:
            return
    print(f"runner: {label}{error}", file=sys.stderr, flush=True)


def _exit_code_of(leaving: SystemExit) -> int:
    """What Python makes of ``sys.exit``'s argument."""
    if leaving.code is None:
        return EXIT_OK
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return EXIT_FAILURE


def _tell_failure(error: BaseException, context: LaunchContext, job: Job | None) -> None:
    """One line that names rank, host and cause, then the program's own part of the traceback."""
    cause = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    own = _skip_runner(error.__traceback__)
    if any(sign in str(error) for sign in _ECHOES):
        time.sleep(_UNREPORTED)  # another rank has failed, and its own message should come first
        cause = _who_has_ended(job) + cause
    print(f"runner: {context.label} failed: {cause}", file=sys.stderr, flush=True)
    sys.excepthook(type(error), error.with_traceback(own), own)  # the program's own, where it has set one
    sys.stderr.flush()


def _who_has_ended(job: Job | None) -> str:
    ended = ended_ranks(job) if job is not None else []
    if job is None or not ended:
        return ""
    hosts = ", ".join(dict.fromkeys(job.topology.records[rank].host for rank in ended))
    return (
        f"{ranks_text(ended)} on {hosts} had already ended (exit code 0) while this rank still worked; all ranks have to "
        "make the same collective calls (batches, epochs, barriers): "
    )


def _skip_runner(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not the runner's own way to the target."""
    # It begins in the command line's main().
    way = {trace.tb_frame.f_code.co_filename, runner.dispatch.__file__} if trace is not None else set()
    start = trace
    while start is not None and (
        start.tb_frame.f_code.co_filename in way or "<frozen" in start.tb_frame.f_code.co_filename
    ):
        start = start.tb_next
    return start or trace
