"""What the end of a rank's worker means: each rule as a line of a table, and what holds whatever the facts are."""

from __future__ import annotations

import signal
from dataclasses import fields, replace
from signal import SIGINT, SIGKILL, SIGSEGV, SIGTERM, SIGUSR1
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base.errors import EXIT_OK, EXIT_REQUEUE, EXIT_USAGE
from runner.guard.decision import SILENTLY, Awaited, Decision, Facts, WorkerEnd, decide
from runner.guard.process.proxy import NOTICE_SIGNALS, STOP_SIGNALS

# Rank 1 of 2, which has met the other one, and can be told by it of its failure. Its job is not started again in place.
END = WorkerEnd(
    status=0,
    verdict=None,
    ends_everywhere=False,
    has_said=False,
    said_signal=None,
    passed_on=frozenset(),
    is_killed_for_memory=False,
    is_hung=False,
    all_end_with=None,
    has_met=True,
    was_lost_early=False,
    is_in_training=False,
    step=0,
)
FACTS = Facts(
    end=END,
    size=2,
    how_to_resume="continue with --resume",
    attempt=0,
    restarts=0,
    may_restart=False,
    is_recorded=False,
    said="",
    has_spoken=False,
    waited_out=frozenset(),
    follows=False,
    hang_is_reported=False,
    has_lost_launcher=False,
    is_ended_by_signal=False,
    is_ended_by_launcher=False,
    is_told_by_another=False,
    is_reached=True,
    present=frozenset({0}),
    unfinished=frozenset({0}),
)
OF_END = {field.name for field in fields(WorkerEnd)}
REASON = "(why the ranks have not met)"
EARLY = "left early, with exit code 0 after step 3 of the training"
SILENT = f"ended with code {{}}, {SILENTLY}"
BY_LAUNCHER = {"is_ended_by_signal": True, "is_ended_by_launcher": True}
CAUSE, REPORT, PEERS, EARLIER = Awaited.CAUSE, Awaited.HANG_REPORT, Awaited.PEERS, Awaited.EARLIER_FAILURE


def facts(**changes: Any) -> Facts:
    """``FACTS``, but for these fields of it or of its end."""
    end = {name: value for name, value in changes.items() if name in OF_END}
    return replace(FACTS, end=replace(END, **end), **{name: changes[name] for name in changes.keys() - OF_END})


def exited(code: int, **changes: Any) -> Facts:
    """A worker that has exited without a word, so that nobody waits for a cause any more."""
    return facts(**{"status": code << 8, "waited_out": frozenset({CAUSE}), **changes})


def left(code: int, **changes: Any) -> Facts:
    """A worker that has said that it ends."""
    return facts(status=code << 8, has_said=True, **changes)


def killed(number: int, **changes: Any) -> Facts:
    """A worker that a signal has ended."""
    return facts(**{"status": int(number), **changes})


def hung(**changes: Any) -> Facts:
    """One that counts as hung, and has ended before that was reported."""
    return killed(SIGKILL, is_hung=True, **{"has_said": True, **changes})


def restartable(made: Facts, **changes: Any) -> Facts:
    """In a job that may be started again in place."""
    return replace(made, **{"restarts": 2, "may_restart": True, **changes})


def signalled(*numbers: int) -> dict[str, Any]:
    """These had come before the worker's end."""
    return {"passed_on": frozenset(numbers), "is_ended_by_signal": not frozenset(numbers).isdisjoint(STOP_SIGNALS)}


# What is known; the exit code, the message, a part of the fix ("": there is none), what is waited for, and whether all start again.
CASES: dict[str, tuple[Facts, int, str, str, Awaited | None, bool]] = {
    # What the worker, or its guard, had said before counts.
    "it has failed, and says so": (killed(SIGKILL, verdict=9, has_said=True), 9, "", "", None, False),
    "it was to be ended for another rank": (killed(SIGTERM, verdict=1, follows=True), 1, "", "", None, False),
    "it has hung, and then fails": (left(9, verdict=9, is_hung=True), 9, "", "", None, False),
    "all ranks refuse": (left(2, verdict=2, ends_everywhere=True), 2, "", "", None, False),
    "all save": (left(75, verdict=75, said_signal="SIGTERM", ends_everywhere=True), 75, "", "", None, False),
    "not even SIGKILL ends it": (facts(status=None, verdict=143, all_end_with=2), 143, "", "", None, False),
    "not even SIGKILL ends it, and it hangs": (facts(status=None, verdict=70, is_hung=True), 70, "", "", None, False),
    # An exit code.
    "it ends well": (left(0, present=frozenset()), 0, "", "", None, False),
    "sys.exit(7)": (left(7), 7, "", "", None, False),
    "it leaves its training": (facts(is_in_training=True, step=3), 1, EARLY, "all of its steps", None, False),
    "it fails in its training": (left(7, is_in_training=True, step=3), 7, "", "", None, False),
    "a script has saved": (exited(75, **signalled(SIGTERM)), 75, "", "", None, False),
    # A signal.
    "a crash": (killed(SIGSEGV), 139, "killed by SIGSEGV", "stack is above; TORCH_DISTRIBUTED", None, False),
    "a crash of the only rank": (killed(SIGSEGV, size=1), 139, "killed by SIGSEGV", "stack is above", None, False),
    "killed": (killed(SIGKILL), 137, "killed by SIGKILL", "dmesg", None, False),
    "killed, and that was said": (killed(SIGKILL, has_spoken=True), 137, "", "", None, False),
    "killed after a step": (killed(SIGKILL, step=5), 137, "killed by SIGKILL", "; continue with --resume", None, False),
    "no memory": (killed(SIGKILL, is_killed_for_memory=True), 137, "killed by SIGKILL for lack of memory", "ask for more", None, False),
    "a crash beside one": (killed(SIGSEGV, is_killed_for_memory=True), 139, "killed by SIGSEGV", "stack", None, False),
    "ended": (killed(SIGTERM, **signalled(SIGTERM)), 143, "", "", None, False),
    "ended by another signal than that": (killed(SIGKILL, **signalled(SIGTERM)), 137, "killed by SIGKILL", "dmesg", None, False),
    "only the worker is ended": (killed(SIGTERM), 143, "killed by SIGTERM", "", None, False),
    "only the worker is ended, early": (killed(SIGTERM, has_met=False), 143, "killed by SIGTERM", "", None, False),
    "ended early": (killed(SIGTERM, has_met=False, **signalled(SIGTERM)), 1, "", "", None, False),
    "interrupted early": (killed(SIGINT, has_met=False, **signalled(SIGINT)), 130, "", "", None, False),
    "one that informs": (killed(SIGUSR1, **signalled(SIGUSR1)), 138, "killed by SIGUSR1", "", None, False),
    # All ranks end with one code, and the launcher was faster.
    "all save, one is ended": (killed(SIGTERM, all_end_with=75, **signalled(SIGTERM)), 75, "", "", None, False),
    "all save, one is late": (killed(SIGKILL, verdict=143, all_end_with=75), 75, "", "", None, False),
    "all save, one crashes": (killed(SIGSEGV, all_end_with=75), 139, "killed by SIGSEGV", "stack", None, False),
    # Before the ranks have met.
    "a library ends it": (exited(16, has_met=False), 16, REASON, "", None, False),
    "a library ends it, and that was said": (exited(16, has_met=False, has_spoken=True), 16, "", "", None, False),
    "it refuses": (exited(2, has_met=False), 2, "", "", None, False),
    "a shell's code": (exited(130, has_met=False), 130, "", "", None, False),
    "a signal was before": (exited(16, has_met=False, **signalled(SIGUSR1)), 16, "", "", None, False),
    "an end with 0": (exited(0, has_met=False), 0, "", "", None, False),
    # It leaves without a word after they have met.
    "os._exit(3)": (facts(status=3 << 8), 3, SILENT.format(3), "", CAUSE, False),
    "os._exit(3), and nobody says why": (exited(3), 3, SILENT.format(3), "", None, False),
    "os._exit(3), and that was said": (facts(status=3 << 8, has_spoken=True), 3, "", "", None, False),
    "os._exit(3) as another fails": (facts(status=3 << 8, follows=True), 3, "", "", None, False),
    "os._exit(3) in a hang": (facts(status=3 << 8, hang_is_reported=True), 3, "", "", None, False),
    "os._exit(3) by a signal": (exited(3, **signalled(SIGTERM)), 3, "", "", None, False),
    "os._exit(3) before a signal": (facts(status=3 << 8, is_ended_by_signal=True), 3, "", "", None, False),
    "os._exit(3) without a launcher": (facts(status=3 << 8, has_lost_launcher=True), 3, "", "", None, False),
    "os._exit(3) of the only rank": (facts(status=3 << 8, size=1), 3, "", "", None, False),
    "os._exit(0)": (facts(), 0, "", "", CAUSE, False),
    "os._exit(0), and nobody is held up": (exited(0), 0, "", "", None, False),
    "os._exit(0), so the launcher ends all": (exited(0, **BY_LAUNCHER), 0, SILENT.format(0), "", None, False),
    "os._exit(0) of two ranks": (exited(0, is_told_by_another=True, **BY_LAUNCHER), 0, "", "", None, False),
    # A rank that has ended well ends as the job does.
    "another has failed": (left(0, follows=True), 1, "", "", None, False),
    "a hang": (left(0, hang_is_reported=True), 70, "", "", None, False),
    "a hang, and then all fail": (left(0, hang_is_reported=True, follows=True), 70, "", "", None, False),
    "another has failed, too": (left(7, follows=True), 7, "", "", None, False),
    # It stays for the others.
    "it waits for the others": (left(0), 0, "", "", PEERS, False),
    "it may hold up the others' MPI": (exited(0), 0, "", "", None, False),
    "nobody can be heard": (left(0, is_reached=False), 0, "", "", None, False),
    "the launcher is gone": (left(0, has_lost_launcher=True), 0, "", "", None, False),
    "the job was ended": (left(0, is_ended_by_signal=True), 0, "", "", None, False),
    "others may yet fail": (restartable(exited(0)), 0, "", "", PEERS, False),
    "all have ended well": (restartable(left(0), unfinished=frozenset()), 0, "", "", None, False),
    "no other start is possible": (restartable(exited(0), may_restart=False), 0, "", "", None, False),
    # Its own hang.
    "its hang is not reported yet": (hung(), 70, "", "", REPORT, False),
    "its hang is reported": (hung(hang_is_reported=True), 70, "", "", None, False),
    "its hang is not reported in time": (hung(waited_out=frozenset({REPORT})), 70, "", "", None, False),
    "nobody reports its hang": (hung(is_reached=False), 70, "", "", None, False),
    "a script that ends with 70": (left(70), 70, "", "", None, False),
    "another fails before its hang is reported": (hung(follows=True), 1, "", "", None, False),
    "it goes on after its stack was shown": (left(0, is_hung=True), 70, "", "", REPORT, False),
    # The job's first failure is written.
    "another may have failed first": (left(7, is_recorded=True), 7, "", "", EARLIER, False),
    "no other has": (left(7, is_recorded=True, waited_out=frozenset({EARLIER})), 7, "", "", None, False),
    "its cause is known": (left(7, is_recorded=True, said="ValueError"), 7, "", "", None, False),
    "its cause is another": (left(7, is_recorded=True, follows=True), 7, "", "", None, False),
    "no failure": (left(75, is_recorded=True), 75, "", "", None, False),
    "Ctrl-C": (left(130, is_recorded=True), 130, "", "", None, False),
    "no failure of its own": (left(7, is_recorded=True, is_ended_by_signal=True), 7, "", "", None, False),
    # All start again.
    "a crash is mended": (restartable(killed(SIGSEGV)), 139, "killed by SIGSEGV", "stack", None, True),
    "it follows": (restartable(killed(SIGTERM, verdict=1, follows=True)), 1, "", "", None, True),
    "a hang is mended": (restartable(killed(SIGKILL, verdict=70, hang_is_reported=True)), 70, "", "", None, True),
    "it had ended well": (restartable(left(0, follows=True)), 1, "", "", None, True),
    "the last attempt": (restartable(left(7), attempt=2), 7, "", "", None, False),
    "the last but one": (restartable(left(7), attempt=1), 7, "", "", None, True),
    "another one does not": (restartable(left(7, follows=True), may_restart=False), 7, "", "", None, False),
    "it is alone": (restartable(left(7, size=1), is_reached=False), 7, "", "", None, True),
    "the others would not hear": (restartable(left(7), is_reached=False), 7, "", "", None, False),
    "they have not met": (restartable(exited(16, has_met=False)), 16, REASON, "", None, False),
    "they have not met again": (restartable(exited(16, has_met=False), attempt=1), 16, REASON, "", None, True),
    "the request is wrong": (restartable(left(2)), 2, "", "", None, False),
    "it is to be queued again": (restartable(left(75)), 75, "", "", None, False),
    "all end": (restartable(left(7, verdict=7, ends_everywhere=True)), 7, "", "", None, False),
    "by a signal": (restartable(left(7), is_ended_by_signal=True), 7, "", "", None, False),
    "without a launcher": (restartable(left(7), has_lost_launcher=True), 7, "", "", None, False),
}  # fmt: skip


@pytest.mark.parametrize(("known", "code", "message", "fix", "waits_for", "again"), CASES.values(), ids=CASES)
def test_what_an_end_means(
    known: Facts, code: int, message: str, fix: str, waits_for: Awaited | None, again: bool
) -> None:
    decision = decide(known)
    assert (decision.code, decision.waits_for, decision.starts_again) == (code, waits_for, again)
    assert decision.needs_reason == (message == REASON)
    assert (REASON if decision.needs_reason else decision.message) == message
    assert fix in decision.fix if fix else decision.fix == ""


@pytest.mark.parametrize(
    ("known", "ended_by"),
    [
        (killed(SIGKILL), "SIGKILL"),
        (killed(SIGKILL, is_killed_for_memory=True), None),
        (killed(SIGTERM, **signalled(SIGTERM)), "SIGTERM"),
        (killed(SIGTERM, has_met=False, **signalled(SIGTERM)), "SIGTERM"),
        (killed(SIGTERM, all_end_with=2, **signalled(SIGTERM)), None),
        (left(75, verdict=75, said_signal="SIGUSR1"), "SIGUSR1"),
        (exited(75, **signalled(SIGTERM)), "SIGTERM"),  # a script that was asked to save
        (exited(75, **signalled(SIGUSR1)), None),
        (exited(1, **signalled(SIGTERM)), None),
        (hung(), None),
    ],
)
def test_the_signal_that_has_ended_it_is_known(known: Facts, ended_by: str | None) -> None:
    assert decide(known).ended_by == ended_by


@pytest.mark.parametrize(
    ("known", "is_first", "tells", "cause"),
    [
        (left(7), True, True, "ended with code 7"),
        (left(7, said="ValueError"), True, True, "ValueError"),
        (left(0), False, False, ""),
        (left(0, follows=True), False, False, ""),
        (left(75), False, True, ""),
        (left(130), False, True, ""),
        (left(7, is_ended_by_signal=True), False, True, ""),
        (left(7, has_lost_launcher=True), False, True, ""),
        (left(7, follows=True), False, False, ""),
        (left(70, hang_is_reported=True), True, False, "ended with code 70"),  # where the report has come: known
        (left(2, verdict=2, ends_everywhere=True), True, False, "ended with code 2"),
        (restartable(left(7, follows=True)), False, False, ""),
        # The others are about to start again: this one cannot.
        (restartable(left(7, follows=True), attempt=2), False, True, ""),
    ],
)
def test_the_others_are_told_of_what_they_do_not_know(known: Facts, is_first: bool, tells: bool, cause: str) -> None:
    decision = decide(known)
    assert (decision.is_first_failure, decision.tells_failure) == (is_first, tells)
    assert decision.cause == cause or not is_first


@pytest.mark.parametrize(
    ("known", "tells_return", "tells_done"),
    [
        (facts(), True, False),
        (facts(status=3 << 8), False, False),
        (left(0), False, False),
        (exited(0, **signalled(SIGTERM)), False, False),
        (restartable(left(0)), False, True),
        (restartable(left(0), may_restart=False), False, False),
        (restartable(left(0), follows=True), False, False),
        (restartable(left(0), has_lost_launcher=True), False, False),
        (restartable(left(0), is_reached=False), False, False),
    ],
)
def test_the_others_are_told_of_a_good_end_that_matters_to_them(
    known: Facts, tells_return: bool, tells_done: bool
) -> None:
    decision = decide(known)
    assert (decision.tells_return, decision.tells_done) == (tells_return, tells_done)


@pytest.mark.parametrize(
    ("known", "ends_launch"),
    [
        (exited(16, has_met=False), True),
        (exited(16), False),
        (hung(has_said=False, was_lost_early=True), True),  # it has met them since, as far as its guard knows
        (left(2, verdict=2, has_met=False), False),  # it has asked the launcher itself
        (exited(0, has_met=False), False),
    ],
)
def test_a_launcher_that_waits_for_mpi_is_asked_to_end_the_job(known: Facts, ends_launch: bool) -> None:
    assert decide(known).ends_launch == ends_launch


CODES = [1, 2, 7, 70, 75, 130, 143]  # a worker and its guard have said nothing else before a worker's end
STATUSES = [code << 8 for code in [0, *CODES]] + [int(number) for number in (SIGKILL, SIGTERM, SIGINT, SIGSEGV)]
flags = st.booleans()
others = st.frozensets(st.integers(0, 3), max_size=2)


@st.composite
def drawn_facts(draw: st.DrawFn) -> Facts:
    """Facts that can be together."""
    verdict = draw(st.none() | st.sampled_from(CODES))
    status = st.just(0) | st.sampled_from(STATUSES)
    passed_on = draw(
        st.just(frozenset()) | st.frozensets(st.sampled_from([*STOP_SIGNALS, *NOTICE_SIGNALS]), max_size=2)
    )
    is_ended_by_signal = not passed_on.isdisjoint(STOP_SIGNALS) or draw(flags)
    restarts = draw(st.integers(0, 2))
    known: dict[str, Any] = {
        "status": draw(status if verdict is None else status | st.none()),
        "verdict": verdict,
        "ends_everywhere": verdict is not None and draw(flags),
        "passed_on": passed_on,
        "all_end_with": draw(st.sampled_from([None, 2, EXIT_REQUEUE])),
        "step": draw(st.sampled_from([0, 5])),
        "size": draw(st.integers(1, 3)),
        "restarts": restarts,
        "attempt": draw(st.integers(0, restarts)),
        "may_restart": restarts > 0 and draw(flags),
        "said": draw(st.sampled_from(["", "ValueError"])),
        "waited_out": draw(st.frozensets(st.sampled_from(Awaited))),
        "is_ended_by_signal": is_ended_by_signal,
        "is_ended_by_launcher": is_ended_by_signal and draw(flags),
        "present": draw(others),
        "unfinished": draw(others),
    }
    booleans = ("has_said", "is_killed_for_memory", "is_hung", "has_met", "was_lost_early", "is_in_training")
    more = ("is_recorded", "has_spoken", "follows", "hang_is_reported", "has_lost_launcher", "is_told_by_another")
    return facts(**known, **{name: draw(flags) for name in (*booleans, *more, "is_reached")})


def a_rank_ends_with_0_only_where_the_job_is_well_as_far_as_it_knows(known: Facts) -> None:
    assert 0 <= decide(known).code < 256
    assert decide(replace(known, hang_is_reported=True)).code != EXIT_OK
    assert decide(replace(known, follows=True)).code != EXIT_OK
    assert decide(replace(known, end=replace(known.end, is_in_training=True))).code != EXIT_OK


def a_signal_that_ends_the_job_is_no_failure(known: Facts) -> None:
    decision = decide(replace(known, is_ended_by_signal=True))
    assert not decision.is_first_failure
    assert not decision.starts_again
    assert decision.waits_for in (None, REPORT)  # who has hung says so all the same


def ranks_start_again_only_after_a_failure_that_another_attempt_may_not_have(known: Facts) -> None:
    decision = decide(restartable(known))
    if decision.starts_again:
        assert known.end.has_met or known.attempt > 0
        assert known.attempt < 2
        assert decision.code not in (EXIT_OK, EXIT_USAGE, EXIT_REQUEUE)
        assert not known.end.ends_everywhere
        assert decision.tells_failure or known.follows or known.hang_is_reported  # the others know it
        assert not decide(restartable(known, may_restart=False)).starts_again
        assert not decide(restartable(known, attempt=2)).starts_again


def every_wait_ends(known: Facts) -> None:
    decision = decide(known)
    assert decision.waits_for not in known.waited_out - {PEERS}
    nobody = replace(known, waited_out=frozenset(Awaited), present=frozenset(), unfinished=frozenset())
    assert decide(nobody).waits_for is None


def a_rank_that_has_failed_waits_for_nobodys_end(known: Facts) -> None:
    decision = decide(known)
    assert decision.waits_for is not PEERS or decision.code == EXIT_OK


def what_the_worker_or_another_has_said_is_not_said_again(known: Facts) -> None:
    decision, spoken = decide(known), decide(replace(known, has_spoken=True))
    assert not (decision.message or decision.needs_reason) or known.end.verdict is None
    assert not (decision.message and decision.needs_reason)
    assert decision.message or not decision.fix
    assert (spoken.message, spoken.fix, spoken.needs_reason) == ("", "", False)
    assert spoken.code == decision.code


def where_all_ranks_end_alike_no_guard_tells_of_a_failure(known: Facts) -> None:
    everywhere = replace(known.end, verdict=7, ends_everywhere=True)
    decision = decide(restartable(replace(known, end=everywhere)))
    assert decision.code == 7
    assert not decision.tells_failure
    assert not decision.starts_again


def the_first_failure_is_no_end_that_was_asked_for(known: Facts) -> None:
    decision: Decision = decide(known)
    if decision.is_first_failure:
        assert decision.code not in (EXIT_OK, EXIT_REQUEUE, 128 + signal.SIGINT)
        assert not known.follows
        assert decision.cause


RULES = (
    a_rank_ends_with_0_only_where_the_job_is_well_as_far_as_it_knows,
    a_signal_that_ends_the_job_is_no_failure,
    ranks_start_again_only_after_a_failure_that_another_attempt_may_not_have,
    every_wait_ends,
    a_rank_that_has_failed_waits_for_nobodys_end,
    what_the_worker_or_another_has_said_is_not_said_again,
    where_all_ranks_end_alike_no_guard_tells_of_a_failure,
    the_first_failure_is_no_end_that_was_asked_for,
)


@settings(max_examples=200)
@given(drawn_facts() | st.sampled_from([known for known, *_ in CASES.values()]))
def test_what_holds_whatever_the_facts_are(known: Facts) -> None:
    """All rules by one drawing, which takes longer than a decision."""
    for rule in RULES:
        rule(known)
