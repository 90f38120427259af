"""How a run ends: its exit code, and which rank prints what."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import runner.launch.modules
import runner.launch.program
from runner.backends.shutdown import shutdown
from runner.base.errors import EXIT_FAILURE, EXIT_OK, RunnerError, is_echo
from runner.guard.process.lifeline import Fails, Leaves, Lifeline
from runner.guard.report.failure import EVERY_STEP, after_error
from runner.guard.settings import Refused
from runner.job import Job
from runner.launch.context import LaunchContext
from runner.launch.detect import is_reporting
from runner.launch.hydra import end_other_ranks
from runner.rendezvous.records.topology import ranks_text
from runner.rendezvous.transport.secret import derived
from runner.versions.extras import missing_here

# How torch begins the message of an error that a worker of a DataLoader has raised (torch._utils.ExceptionWrapper).
_IN_WORKER = re.compile(r"Caught (\w+) in (DataLoader worker process \d+)\.")
_UNREPORTED = 2.0  # seconds that a rank waits so that another rank's message comes first
_ALIKE_SECONDS = 0.5  # in which the ranks of a host that fail alike find one another
_LOOKS = 0.02  # seconds between two looks for that
_INTERRUPTED = 130  # 128 + SIGINT


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the worker ends."""

    code: int
    is_collective: bool  # all ranks end like this, so they can leave the process group and MPI together
    why: str = ""  # in a line
    signal: str | None = None  # that has asked for it
    traceback: str = ""
    is_bounded: bool = True  # the guard kills a worker whose exit takes long; not after the program's sys.exit()


SUCCESS = Outcome(code=EXIT_OK, is_collective=True)


def refuse_launch(error: RunnerError) -> NoReturn:
    """Print why a process cannot start, and end it; its rank is not known yet."""
    _print_once(error, is_reporting(os.environ), "")
    end_other_ranks(os.environ, error.exit_code)
    sys.exit(error.exit_code)


@contextmanager
def refusing(environment: Mapping[str, str]) -> Iterator[None]:
    """A process that cannot start, of a rank that is not known yet.

    Raises:
        Refused: in the place of a RunnerError or SystemExit in the block.
    """
    try:
        yield
    except RunnerError as error:
        is_first = is_reporting(environment)
        line = f"runner: {error}" if is_first or not error.on_all_ranks else ""
        raise Refused(line, error.exit_code, after=0.0 if is_first else _UNREPORTED) from error
    except SystemExit as leaving:
        raise Refused("", _exit_code_of(leaving)) from leaving


def outcome_of(error: BaseException, context: LaunchContext, job: Job | None) -> Outcome:
    """The outcome of an exception in the worker. Prints a message, if this rank has to."""
    if isinstance(error, SystemExit):
        code = _exit_code_of(error)
        if (
            code == EXIT_OK
            and job is not None
            and os.getpid() == job.board.process
            and (progress := job.board.read()).is_in_training
        ):
            print(
                f"runner: {context.label} left early, by sys.exit() after step {progress.step} of the training; {EVERY_STEP}; "
                "to stop at a step take --max-steps, to save and stop now os.kill(os.getpid(), signal.SIGTERM)",
                file=sys.stderr,
                flush=True,
            )
            return Outcome(code=EXIT_FAILURE, is_collective=False)
        if code != EXIT_OK and context.size.value > 1:
            print(f"runner: {context.label} ended with code {code}, by sys.exit()", file=sys.stderr, flush=True)
        # The program chose to end, so its exit handlers have no time limit.
        return Outcome(code=code, is_collective=code == EXIT_OK, is_bounded=False)
    if isinstance(error, KeyboardInterrupt):
        return Outcome(code=_INTERRUPTED, is_collective=False)
    error = missing_here(error) or error
    if isinstance(error, RunnerError):
        is_one_ranks = not error.on_all_ranks and context.size.value > 1
        _print_once(error, context.rank.value == 0, f"{context.label}: " if is_one_ranks else "")
        return Outcome(code=error.exit_code, is_collective=error.on_all_ranks, why=str(error), signal=error.signal)
    cause = _report_failure(error, context, job)
    trace = "".join(traceback.format_exception(error))
    return Outcome(code=EXIT_FAILURE, is_collective=False, why=cause, traceback=trace)


def end_worker(outcome: Outcome, lifeline: Lifeline, job: Job | None) -> NoReturn:
    """Tell the guard how this process ends, and end it."""
    if os.getpid() != lifeline.worker:
        shutdown(outcome.code, collective=False)  # a forked child: process group and MPI belong to its parent
    if outcome.code != EXIT_OK and outcome.is_bounded:
        lifeline.tell(
            Fails(
                code=outcome.code,
                everywhere=outcome.is_collective,
                why=outcome.why,
                traceback=outcome.traceback,
                signal=outcome.signal,
            )
        )
        # From here on the guard bounds every wait.
        if job is None and not outcome.is_collective and "mpi4py.MPI" not in sys.modules:
            end_other_ranks(os.environ, outcome.code)
    if outcome.code != EXIT_OK and not outcome.is_bounded:
        lifeline.tell(Leaves(outcome.code))
    shutdown(outcome.code, collective=outcome.is_collective, before_leaving=lambda: lifeline.tell(Leaves(outcome.code)))


def _print_once(error: RunnerError, first: bool, label: str) -> None:
    """Print one line, on the first rank at once, on others later; an error of all ranks only on the first rank."""
    if not first:
        if error.on_all_ranks:  # with its own exit code, also where the launcher ends it for the first rank's
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # When a rank ends the launcher ends the others, so give rank 0 time to print. MPI_Finalize() waits for it anyway.
        if not (error.on_all_ranks and "mpi4py.MPI" in sys.modules):
            time.sleep(_UNREPORTED)
        if error.on_all_ranks:
            return
    print(f"runner: {label}{error}", file=sys.stderr, flush=True)


def _exit_code_of(leaving: SystemExit) -> int:
    """The exit code that Python derives from ``sys.exit``'s argument."""
    if leaving.code is None:
        return EXIT_OK
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return EXIT_FAILURE


def _report_failure(error: BaseException, context: LaunchContext, job: Job | None) -> str:
    """Print one line with rank, host and cause, then the program's own part of the traceback. Returns the cause."""
    cause = _cause_of(error)
    own = _skip_runner(error.__traceback__)
    if is_echo(error):
        time.sleep(_UNREPORTED)  # another rank has failed, and its own message should come first
        cause = _who_has_ended(job) + cause
    fix = after_error(error)
    text = "".join(traceback.format_exception(error.with_traceback(own)))
    with _alike(text, None if is_echo(error) else job) as ranks:
        if ranks:
            alike = f" ({ranks_text(ranks)} alike)" if len(ranks) > 1 else ""
            print(f"runner: {context.label} failed: {cause}{fix and f'; {fix}'}{alike}", file=sys.stderr, flush=True)
        if ranks or not (sys.excepthook.__module__ or "").startswith(("sys", "torch.")):
            sys.excepthook(type(error), error, own)  # the program's own hook, if it has set one
        sys.stderr.flush()
    return cause


@contextmanager
def _alike(text: str, job: Job | None) -> Iterator[list[int]]:
    """The ranks of this host whose programs have just failed by this traceback; none on all but the first of them.

    The others wait until the first has printed it. With --log-dir each rank's file has its own.
    """
    if job is None or job.size == 1 or job.log_folder is not None:
        yield [0 if job is None else job.rank]
        return
    path = Path(tempfile.gettempdir(), f"runner-failed-{derived(job.endpoint.key, text).hex()[:16]}")
    shown = path.with_suffix(".shown")
    try:
        ranks = _met(path, shown, job)
    except (OSError, ValueError, IndexError):  # it has to be printed, whatever a file system does
        ranks = [job.rank]
    try:
        yield ranks
    finally:
        with contextlib.suppress(OSError):
            shown.unlink()


def _met(path: Path, shown: Path, job: Job) -> list[int]:
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, b"%d\n" % job.rank)
    os.close(file)
    is_first = int(path.read_text().split()[0]) == job.rank
    end, most = time.monotonic() + _ALIKE_SECONDS, job.topology.local_size(job.rank)
    while is_first and time.monotonic() < end and len(path.read_text().split()) < most:
        time.sleep(_LOOKS)
    if is_first:
        path.replace(shown)
        return sorted(int(rank) for rank in shown.read_text().split())
    end += _UNREPORTED
    while time.monotonic() < end and (path.exists() or shown.exists()):
        time.sleep(_LOOKS)
    return []


def _cause_of(error: BaseException) -> str:
    """The error's type, and its first line; of an error in a data loader's worker those of the program's own."""
    lines = str(error).strip().splitlines()
    if lines and (worker := _IN_WORKER.fullmatch(lines[0])):
        own = [line for line in lines[1:] if re.match(rf"[\w.]*\b{worker[1]}\b", line)]
        return f"{(own or lines)[-1]} (in {worker[2]})"
    return ": ".join([type(error).__name__, *lines[:1]])


def _who_has_ended(job: Job | None) -> str:
    ended = job.board.ended_ranks() if job is not None else []
    if job is None or not ended:
        return ""
    hosts = ", ".join(dict.fromkeys(job.topology.records[rank].host for rank in ended))
    return (
        f"{ranks_text(ended)} on {hosts} had already ended while this rank still worked; all ranks have to "
        "make the same collective calls (batches, epochs, barriers): "
    )


def _skip_runner(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the runner's own frames above the target."""
    own = str(Path(__file__).parent), runner.launch.modules.__file__, runner.launch.program.__file__, "<frozen"
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename.startswith(own):
        start = start.tb_next
    return start or trace
