"""The decision about the end of a rank's worker: a function of the facts that its guard knows, without a clock, input or output.

A guard decides again after each of its waits, with what it has heard meanwhile. ``waits_for`` is None in the last decision.
"""

from __future__ import annotations

import enum
import os
import signal
from dataclasses import dataclass, replace

from runner.base.errors import EXIT_FAILURE, EXIT_HANG, EXIT_OK, EXIT_REQUEUE, EXIT_USAGE
from runner.guard.process.events import name_of
from runner.guard.process.proxy import NOTICE_SIGNALS, STOP_SIGNALS
from runner.guard.report.failure import EVERY_STEP, MORE_MEMORY, after_signal

SILENTLY = "without Python's own end: by os._exit(), os.exec…() or a library"
_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Awaited(enum.Enum):
    """A fact that may change a decision, so that a guard waits for it."""

    CAUSE = enum.auto()  # why the worker has left without a word: its MPI may have ended it for another rank
    HANG_REPORT = enum.auto()  # rank 0's guard makes it
    PEERS = enum.auto()  # the ends of the other ranks' workers
    EARLIER_FAILURE = enum.auto()  # another rank's, which is then the job's first


@dataclass(frozen=True, kw_only=True)
class WorkerEnd:
    """How a worker has ended, and how far it had come. This does not change any more."""

    status: int | None  # as waitpid() returns it; None: not even SIGKILL has ended it
    verdict: int | None  # the exit code, where the worker has said it, or its guard has ended it for a reason
    ends_everywhere: bool  # all ranks end with the verdict, as the worker has said
    has_said: bool  # the worker has said that it ends
    said_signal: str | None  # for which it ends, as it has said
    passed_on: frozenset[int]  # the signals that its guard had got for it
    is_killed_for_memory: bool
    is_hung: bool  # it counted as hung
    all_end_with: int | None  # the code with which all ranks end, as another one had said
    has_met: bool  # the other ranks
    was_lost_early: bool  # it counted as hung before it had met them; it may have met them since
    is_in_training: bool
    step: int  # the last that is done


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A worker's end, and what its guard knows of the job by now."""

    end: WorkerEnd
    size: int
    how_to_resume: str  # "" if that is not known
    attempt: int  # how often the ranks were started again
    restarts: int  # how often they may be
    may_restart: bool  # as far as the other guards say
    is_recorded: bool  # the job's first failure is written to a file
    said: str  # what was printed last of this rank's end, "" for nothing
    has_spoken: bool  # what is to be printed of this end was printed, or is left to others
    waited_out: frozenset[Awaited]  # the time for them is over
    follows: bool  # another rank has failed, or its guard is gone
    hang_is_reported: bool  # so all ranks end
    has_lost_launcher: bool
    is_ended_by_signal: bool  # one that ends jobs has come, perhaps after the worker's end
    is_ended_by_launcher: bool  # by such a signal
    is_told_by_another: bool  # a rank below has left without a word, too, and says so
    is_reached: bool  # the link to the other guards is open
    present: frozenset[int]  # other ranks whose guards are on the link
    unfinished: frozenset[int]  # other ranks that have not ended well in this attempt, and would be heard of

    @property
    def is_ended_from_outside(self) -> bool:
        """Whether the job ends for a reason that is not in it."""
        return self.has_lost_launcher or self.is_ended_by_signal

    @property
    def others_end(self) -> bool:
        """Whether all ranks end for another rank's failure, or for a hang."""
        return self.follows or self.hang_is_reported

    @property
    def is_caused(self) -> bool:
        """Whether it is known why this rank ends, if not by itself."""
        return self.others_end or self.is_ended_from_outside


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The guard's reaction to the end of its worker."""

    code: int  # the exit code of this rank
    message: str  # to be printed with the rank's name, "" for nothing
    fix: str  # what to do about it
    needs_reason: bool  # the message is why the ranks have not met, by this code (``Words.no_rendezvous``)
    ended_by: str | None  # the signal's name, for the rank's state
    waits_for: Awaited | None  # before the rest of this decision counts
    tells_return: bool  # the other guards are told that the worker has ended with 0, but not by itself
    tells_done: bool  # ... that it has ended well, and would be started again
    tells_failure: bool  # ... that it has failed, so all ranks end, or start again
    is_first_failure: bool  # this end is the job's failure, if no other is known
    cause: str  # of that, in a line
    starts_again: bool  # as all ranks do
    ends_launch: bool  # a launcher that waits for this rank's MPI_Init() is asked to end the job


def decide(facts: Facts) -> Decision:
    """Decide what the worker's end means."""
    end, own = facts.end, _own_end(facts)
    code = _code_in_the_job(own.code, facts)
    message = "" if facts.has_spoken else own.message or _silent_message(own, facts)
    has_failed = code != EXIT_OK
    again = _starts_again(code, facts)
    is_known = facts.others_end and (again or not facts.restarts)
    return Decision(
        code=code,
        message=message,
        fix=own.fix if message else "",
        needs_reason=own.needs_reason and not facts.has_spoken,
        ended_by=own.ended_by,
        waits_for=_awaited(own, code, facts),
        tells_return=_is_silent(own, facts) and own.code == EXIT_OK,
        tells_done=_has_ended_well(code, facts) and facts.may_restart,
        tells_failure=has_failed and not (end.ends_everywhere or is_known),
        is_first_failure=not (_is_asked_for(code, facts) or facts.has_lost_launcher or facts.follows),
        cause=facts.said or f"ended with code {code}",
        starts_again=again,
        ends_launch=has_failed and not (end.has_said or (end.has_met and not end.was_lost_early)),
    )


@dataclass(frozen=True, kw_only=True)
class _OwnEnd:
    """The meaning of the worker's end if there were no other ranks."""

    code: int
    message: str = ""
    fix: str = ""
    needs_reason: bool = False
    ended_by: str | None = None


def _own_end(facts: Facts) -> _OwnEnd:
    end = facts.end
    if end.verdict is not None:
        own = _OwnEnd(code=end.verdict, ended_by=end.said_signal)
    else:
        assert end.status is not None
        own = _by_status(os.waitstatus_to_exitcode(end.status), facts)
    if own.code == _TERMINATED and end.all_end_with is not None and end.status is not None:
        # All ranks end with that code; the launcher was faster. srun shows the largest code.
        own = replace(own, code=end.all_end_with, ended_by=None)
    if end.verdict is None and end.is_hung:  # showing its stack has let a stopped worker go on to its end
        own = _OwnEnd(code=EXIT_HANG)
    return own


def _by_status(code: int, facts: Facts) -> _OwnEnd:
    """An end of which neither the worker nor its guard has said anything. ``code``: below 0 for a signal."""
    end = facts.end
    if code < 0:
        return _by_signal(-code, facts)
    if code == EXIT_OK and end.is_in_training:
        what = f"left early, with exit code 0 after step {end.step} of the training"
        return _OwnEnd(code=EXIT_FAILURE, message=what, fix=EVERY_STEP)
    has_saved = code == EXIT_REQUEUE and signal.SIGTERM in end.passed_on  # a script
    # Before the ranks have met, only a library such as MPI_Init() ends the process without a message of the runner.
    is_by_library = not end.has_met and 0 < code < 128 and code != EXIT_USAGE and not end.passed_on
    return _OwnEnd(code=code, needs_reason=is_by_library, ended_by="SIGTERM" if has_saved else None)


def _by_signal(number: int, facts: Facts) -> _OwnEnd:
    end, name = facts.end, name_of(number)
    if number in end.passed_on and number == signal.SIGTERM and not end.has_met:
        # Another rank may have failed before they met: srun shows the largest code, and 143 says nothing.
        return _OwnEnd(code=EXIT_FAILURE, ended_by=name)
    if number in end.passed_on and number not in NOTICE_SIGNALS:
        return _OwnEnd(code=128 + number, ended_by=name)
    is_for_memory = number == signal.SIGKILL and end.is_killed_for_memory
    fixes = (
        MORE_MEMORY if is_for_memory else after_signal(number, facts.size),
        facts.how_to_resume if end.step else "",
    )
    return _OwnEnd(
        code=128 + number,
        message=f"killed by {name}{' for lack of memory' if is_for_memory else ''}",
        fix="; ".join(filter(None, fixes)),
        ended_by=None if is_for_memory else name,
    )


def _is_silent(own: _OwnEnd, facts: Facts) -> bool:
    """Whether the worker has left its job, after the ranks had met, and its end does not tell why."""
    end = facts.end
    is_told = (
        bool(own.message) or end.verdict is not None or end.has_said or bool(end.passed_on.intersection(STOP_SIGNALS))
    )
    return facts.size > 1 and end.has_met and not is_told


def _silent_message(own: _OwnEnd, facts: Facts) -> str:
    """Code 0 needs no word, unless MPI's launcher ends the job for it; another code does where nothing else is its cause."""
    ends_job = facts.is_ended_by_launcher and not facts.is_told_by_another
    is_due = ends_job if own.code == EXIT_OK else not facts.is_caused
    return f"ended with code {own.code}, {SILENTLY}" if is_due and _is_silent(own, facts) else ""


def _code_in_the_job(code: int, facts: Facts) -> int:
    """A rank that has ended well, or waits for the report of its hang, ends as the job does."""
    if code == EXIT_OK and facts.hang_is_reported:
        return EXIT_HANG
    if facts.follows and (code == EXIT_OK or _waits_for_report(code, facts)):
        return EXIT_FAILURE
    return code


def _awaited(own: _OwnEnd, code: int, facts: Facts) -> Awaited | None:
    """Return the fact that is waited for next."""
    is_to_be_explained = _is_silent(own, facts) and not (facts.is_caused or facts.has_spoken)
    if is_to_be_explained and Awaited.CAUSE not in facts.waited_out:
        return Awaited.CAUSE
    if _waits_for_report(code, facts):
        return Awaited.HANG_REPORT
    if _has_ended_well(code, facts) and not facts.is_ended_by_signal:
        # Without restarts it is rank 0, by whose guard the others' messages go, and only if its worker has left MPI by itself: else
        # the launcher sees that it has left by the end of this process.
        others = facts.unfinished if facts.may_restart else facts.present
        if others and (facts.may_restart or facts.end.has_said):
            return Awaited.PEERS
    may_be_second = facts.is_recorded and not (facts.said or facts.follows or _is_asked_for(code, facts))
    if may_be_second and Awaited.EARLIER_FAILURE not in facts.waited_out:
        return Awaited.EARLIER_FAILURE
    return None


def _waits_for_report(code: int, facts: Facts) -> bool:
    is_open = facts.is_reached and not facts.hang_is_reported and Awaited.HANG_REPORT not in facts.waited_out
    return code == EXIT_HANG and facts.end.is_hung and facts.end.status is not None and is_open


def _has_ended_well(code: int, facts: Facts) -> bool:
    """And in a job that has not lost its launcher, with guards that may say more."""
    return code == EXIT_OK and facts.is_reached and not facts.has_lost_launcher


def _is_asked_for(code: int, facts: Facts) -> bool:
    """Whether the end is no failure: nobody has failed in a job that was ended from outside."""
    return code in (EXIT_OK, EXIT_REQUEUE, _INTERRUPTED) or facts.is_ended_by_signal


def _starts_again(code: int, facts: Facts) -> bool:
    """Whether this end is a failure that another attempt may not have, and this guard and the others can make one."""
    has_begun = facts.end.has_met or facts.attempt > 0
    is_last = not facts.may_restart or facts.attempt >= facts.restarts
    is_final = code in (EXIT_OK, EXIT_USAGE, EXIT_REQUEUE) or facts.end.ends_everywhere or facts.is_ended_from_outside
    return has_begun and not (is_last or is_final) and (facts.size == 1 or facts.is_reached)
