"""A worker that makes no progress: how it is noticed, and what is reported about where each rank is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from runner.base.process_stat import process_stat
from runner.guard.hang import collectives, stacks
from runner.guard.hang.collectives import Call
from runner.guard.hang.stacks import IS_RECORDED
from runner.guard.link.messages import Busy, Message, Patient, Reason, Show, Stacks
from runner.guard.link.peers import Peers
from runner.guard.report.board import Board, Progress
from runner.guard.settings import Watched
from runner.rendezvous.records.topology import ranks_text

_STOPPED = 10  # looks, one per second, in which a worker is stopped before it counts as frozen
_ANSWER_SECONDS = 6.0  # seconds that the other guards get to show their workers' calls and stacks
_REPORT_SECONDS = 10.0  # seconds until rank 0's guard has reported a hang
_HOSTS = 3  # that are named per place
_ASK_SECONDS = 10.0  # seconds between two questions about collectives, or a twentieth of what is allowed in one
_FRAMES = 12  # of a stack, in the report
_BETWEEN_SECONDS = 0.9  # seconds between two looks at least
# What comes first in a training or an evaluation may take so many times as long as what follows: it may compile and connect.
_SEVERAL = 5
# The other guards are told of a worker that takes longer than a step, after this share of the time that a step may take.
_TOLD = 1 / 4
_AS_A_SAVE = ("saving", "epoch hook")  # phases that may take as long as a checkpoint
_WHILE = {"saving": ", while it saves", "step hook": ", in a hook", "epoch hook": ", in a hook"}
_CONNECTING = (
    "if the ranks cannot connect: see that NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that reaches the other hosts, that "
    "no firewall is between them, and that InfiniBand works (NCCL_IB_DISABLE=1 does without it); NCCL_DEBUG=INFO shows more"
)
_LONGEST_SECONDS = 3.0  # seconds that count between two looks: a job that was suspended has not hung


class _Clock:
    """Seconds in which a mark has not changed."""

    def __init__(self) -> None:
        self._mark: object = None  # None: nothing is waited for
        self.seconds = 0.0

    def see(self, mark: object, passed: float) -> None:
        """Take the mark as it is so many seconds after the last look."""
        self.seconds = self.seconds + passed if mark is not None and mark == self._mark else 0.0
        self._mark = mark


class Patience:
    """Decides whether a worker still makes progress. Asked at least once per second.

    In a training and its evaluations progress is what the worker reports. Before and after, it is asked in which call of
    torch.distributed it is: what it does by itself there, such as preparing data, may take any time.
    """

    def __init__(
        self, worker: Callable[[], int], board: Board, watched: Watched, requests: collectives.Requests | None = None
    ) -> None:
        """Begin to watch. ``requests``: by which the worker is asked in which collectives it waits."""
        self._worker, self._board, self._requests = worker, board, requests
        self._hang_after, self._save_within = watched.hang_after, watched.save_within
        self._in_collective, self._in_call = watched.in_collective, watched.in_call
        self._busy_after, self._trains = _TOLD * watched.hang_after, watched.trains
        self._looked = self._looked_at_process = self._asked = time.monotonic()
        self._waiting: tuple[Call, ...] | None = None  # the collectives that the worker waits in
        self._call: object = None  # of torch.distributed, in which it is
        self._is_asked, self._is_known = False, True  # whether it is to answer, and whether where it waits is known
        self._progress, self._collective, self._in = _Clock(), _Clock(), _Clock()
        self._unknown, self._outside, self._stopped = 0.0, 0.0, 0  # unknown: seconds since where it waits was known
        self.watched = 0.0  # seconds since the beginning, without those in which the job was suspended
        self.is_busy = False  # it does what may take longer than a step, and has done so for a while
        self.others_are_busy = False  # a rank is, for which this one may wait

    @property
    def is_stopped(self) -> bool:
        """Whether the worker was stopped by a signal when it was last looked at."""
        return self._stopped > 0

    def lost(self, *, has_met: bool = True) -> Reason | None:
        """Return why the worker counts as hung, or None. Before it has met the others only a stopped one does."""
        now, progress = time.monotonic(), self._board.read()
        passed, self._looked = min(now - self._looked, _LONGEST_SECONDS), now
        self.watched += passed
        if now - self._looked_at_process >= _BETWEEN_SECONDS:
            self._looked_at_process = now
            self._stopped = self._stopped + 1 if _is_stopped(self._worker()) else 0
        allowed = self._allowed(progress.phase)
        self._progress.see(self._mark(progress, allowed), passed)
        if allowed:
            self._outside = 0.0
        else:
            self._see_calls(now, passed, may_wait=has_met)
        busy = self._progress.seconds if allowed > self._hang_after else self._outside
        self.is_busy = bool(self._busy_after) and busy > self._busy_after
        if self._stopped >= _STOPPED:
            return Reason(f"stopped by a signal (SIGSTOP) for {_STOPPED} s", is_stopped=True)
        return self._lost_in_training(progress, allowed) if allowed else self._lost_elsewhere()

    def _mark(self, progress: Progress, allowed: float) -> object:
        """Return a value that changes with every progress; None if no progress is expected."""
        is_waiting = self.others_are_busy and allowed == self._hang_after  # for a rank that is busy
        return progress.at if allowed and not is_waiting else None

    def _lost_in_training(self, progress: Progress, allowed: float) -> Reason | None:
        if self._progress.seconds <= allowed:
            return None
        where = f"after step {progress.step}" if progress.step else "before the first step"
        is_by_collective = progress.phase in _AS_A_SAVE and allowed == self._save_within
        return Reason(
            f"no progress for {allowed:.0f} s, {where}{_WHILE.get(progress.phase, '')}",
            option="--collective-timeout" if is_by_collective else Reason.option,
        )

    def _lost_elsewhere(self) -> Reason | None:
        if self._in_collective and self._collective.seconds > self._in_collective:
            is_by_collective = self._in_collective == self._save_within and self._in_collective > self._hang_after
            return Reason(
                f"no progress for {self._in_collective:.0f} s, in a collective",
                option="--collective-timeout" if is_by_collective else Reason.option,
            )
        if self._in_call and self._in.seconds > self._in_call:
            elsewhere = (
                "in torch.distributed, but in no collective" if IS_RECORDED else "in a call of torch.distributed"
            )
            where = "in a collective" if self._waiting else elsewhere
            return Reason(f"no progress for {self._in_call:.0f} s, {where}", is_connecting=not self._waiting)
        return None

    def _see_calls(self, now: float, passed: float, *, may_wait: bool) -> None:
        """Take the time that the worker has been in its calls of torch.distributed, as far as it has answered, or outside of them."""
        self._unknown += passed
        if may_wait:
            self._ask(now)
        else:
            self._waiting, self._call, self._is_known = None, None, True
        if self._is_known:  # else it counts when the worker has answered
            self._collective.see(self._waiting, self._unknown)
            self._in.see(None if self.others_are_busy else self._call, self._unknown)
            self._unknown = 0.0
        is_outside = self._trains and may_wait and self._call is None
        self._outside = self._outside + passed if is_outside else 0.0

    def _ask(self, now: float) -> None:
        """Ask the worker from time to time where it is, and take its answer."""
        if self._requests is None or not (self._in_collective or self._in_call):
            return
        if (answer := self._requests.answered()) is not None:
            self._waiting = tuple(call for call in answer.calls if not call.is_over) or None
            self._call = (answer.inside, answer.calls) if answer.inside else None
            self._is_asked = False
        self._is_known = not self._is_asked
        least = min(limit for limit in (self._in_collective, self._in_call) if limit)
        if not self._is_asked and now - self._asked > min(_ASK_SECONDS, least / 20):
            self._requests.ask()
            self._asked, self._is_asked = now, True

    def _allowed(self, phase: str) -> float:
        """Seconds without progress that this phase may have, 0 for any number."""
        usual, several = self._hang_after, _SEVERAL * self._hang_after
        saving = self._save_within if usual else 0.0
        limits = {"training": usual, "evaluating": usual, "saving": max(usual, saving)}
        limits |= {"warm-up": several, "step hook": several, "epoch hook": max(several, saving)}
        return limits.get(phase, 0.0)


class BusyRanks:
    """The ranks whose workers may take longer than a step; a rank that waits for them has not hung.

    As rank 0's guard knows them in one attempt; on the others only whether this one is busy.
    """

    def __init__(self, peers: Peers, patience: Patience, attempt: int) -> None:
        self._peers, self._patience, self._attempt = peers, patience, attempt
        self._ranks = set[int]()

    def note(self, rank: int, *, is_busy: bool) -> None:
        """Note that a worker is busy, or no longer; tell the others if that is new."""
        if is_busy == (rank in self._ranks):
            return
        were_busy = bool(self._ranks)
        self._ranks ^= {rank}
        if not self._peers.is_hub:
            self._peers.tell(Busy(self._attempt, is_busy))
        elif were_busy != bool(self._ranks):
            self._patience.others_are_busy = not were_busy
            self._peers.tell(Patient(self._attempt, not were_busy))

    def forget_silent(self) -> None:
        """Forget the ranks whose guards have fallen silent."""
        for rank in self._ranks & self._peers.silent:
            self.note(rank, is_busy=False)


class Hang:
    """Facts about a hang: why ranks count as hung, and the stacks of all ranks."""

    def __init__(
        self,
        shown: Callable[[], tuple[int, IO[Any]]],
        rank: int = 0,
        size: int = 1,
        calls: Callable[[], list[Call]] = list,
        attempt: int = 0,
    ) -> None:
        """``shown``: whose stack tells where the worker is, and its file; ``calls`` asks the worker what it has called last."""
        self._shown, self._rank, self._size, self._calls = shown, rank, size, calls
        self._attempt = attempt
        self.reasons: dict[int, Reason] = {}  # by rank
        self.stacks: dict[int, str | None] = {}  # None: the worker has ended well
        self.calls: dict[int, list[Call]] = {}  # by rank; empty: it did not answer
        self.is_reported = False
        self.silent: list[int] = []  # the ranks whose guards have not answered, once it is reported
        self.late: list[int] = []  # the ranks that the others wait for
        self.has_ended = False  # the worker, well
        self._is_blamed = False  # a rank, as it does not wait while others do
        self._answers_by: float | None = None  # once the other guards were asked for stacks
        self._reported_by = 0.0

    @property
    def is_own(self) -> bool:
        """Whether this worker counts as hung."""
        return self._rank in self.reasons

    def begin(self, reason: Reason) -> Reason:
        """Count this worker as hung. Return what rank 0's guard is told."""
        self.reasons[self._rank] = reason = replace(reason, attempt=self._attempt)
        self._reported_by = time.monotonic() + _REPORT_SECONDS
        return reason

    def fix(self, how_to_resume: str) -> str:
        """Return the advice for the user.

        Args:
            how_to_resume: "" if that is not known.
        """
        is_slow = not self.silent and not any(reason.is_stopped for reason in self.reasons.values())
        option = next((reason.option for reason in self.reasons.values()), Reason.option)
        slow = f"if it is only slow, allow more with {option}" if is_slow else ""
        may_connect = IS_RECORDED or not self._is_blamed  # else it may be any collective, which a rank has not called
        is_connecting = may_connect and any(reason.is_connecting for reason in self.reasons.values())
        connecting = _CONNECTING if is_connecting else ""
        return "; ".join(filter(None, (slow, connecting, how_to_resume)))

    def waits(self) -> bool:
        """Return whether a guard whose worker has hung and ended still waits for the report."""
        return self.is_own and not self.is_reported and time.monotonic() < self._reported_by

    def take(self, rank: int, message: Message) -> Stacks | None:
        """Take a message of another guard. Return the answer if it asks for one."""
        match message:
            case Reason():
                self.reasons[rank] = message
            case Stacks():
                self.stacks[rank] = message.text
                if message.text is not None:
                    self.calls[rank] = message.calls
            case Show():
                self._look_at_own()
                return Stacks(self._attempt, self.stacks[self._rank], self.calls.get(self._rank, []))
        return None

    def place(self) -> str:
        """Return the place at which this worker is now."""
        process, file = self._shown()
        frames = stacks.main_thread(stacks.take(process, file))
        in_kernel = "" if frames else stacks.place_in_kernel(process)
        return stacks.place(frames) + (f" ({in_kernel})" if in_kernel else "")

    def look(self, peers: Peers, hosts: Mapping[int, str | None]) -> str:
        """If a rank makes no progress, find out with the other guards where each rank is. Returns the report, once it is made.

        Args:
            hosts: of the ranks, as far as they are known.
        """
        if not self.reasons or self.is_reported:
            return ""
        if not peers.are_reached:
            self._look_at_own()
            return self.report([self._rank], hosts)
        if peers.is_hub and self._answers_by is None:
            peers.tell(Show(self._attempt))
            self._look_at_own()
            self._answers_by = time.monotonic() + _ANSWER_SECONDS
        elif self._answers_by and (len(self.stacks) == self._size or time.monotonic() > self._answers_by):
            return self.report(range(self._size), hosts, peers.present)
        return ""

    def _look_at_own(self) -> None:
        """Take this worker's calls, and its stacks, None if it has ended."""
        # First: the signal that takes the stacks may end the wait in which the worker is.
        if not self.has_ended:
            self.calls[self._rank] = self._calls()
        self.stacks[self._rank] = None if self.has_ended else stacks.take(*self._shown())

    def report(
        self,
        ranks: Iterable[int],
        hosts: Mapping[int, str | None] | None = None,
        present: Collection[int] | None = None,
    ) -> str:
        """Return one line that names the ranks that others wait for, then the process groups in which ranks wait, and the stacks, equal ones once.

        Args:
            present: the ranks that have not left; None: all.
        """
        self.is_reported = True
        self.silent = [rank for rank in ranks if rank not in self.stacks]
        shown = {rank: self.stacks[rank] for rank in ranks if rank in self.stacks}
        found = {rank: stacks.main_thread(text) for rank, text in shown.items() if text is not None}
        frozen = {rank: reason for rank, reason in self.reasons.items() if reason.is_stopped}
        late = {rank: found[rank] for rank in self._waited_for(found) if rank not in frozen} | {
            rank: found[rank] for rank in frozen if rank in found
        }
        self.late = self.silent or [*frozen] or [*late] or [*self.reasons]
        self._is_blamed = 0 < len(late) < len(found)
        waiting = {rank: frames for rank, frames in found.items() if rank not in late}
        reason = next(iter((frozen or self.reasons).values()))
        hosts = hosts or {}
        where = _silent(self.silent, hosts, present)
        where += [f"{ranks_text(same)}{_on(same, hosts)} in {place}" for place, same in _by_place(late)]
        where += [f"{ranks_text(same)} waiting in {place}" for place, same in _by_place(waiting)]
        lines = [f"{reason.text}: {'; '.join(where)}", *collectives.lines(self.calls)]
        for frames, same in collectives.alike((tuple(frames), rank) for rank, frames in found.items()):
            lines.append(f"{ranks_text(same)}, most recent call first:")
            lines += [
                f'  File "{one.file}", line {one.line}, in {one.function}'
                for one in stacks.of_program(frames)[:_FRAMES]
            ]
        return "\n".join(lines)

    def _waited_for(self, found: Mapping[int, Sequence[stacks.Frame]]) -> list[int]:
        """Return the ranks that keep the others waiting: by their collectives, and by their stacks where those do not tell.

        On a GPU a collective returns at once, and who waits for another rank waits anywhere for the device.
        """
        by_stack = [rank for rank, frames in found.items() if not stacks.waits(frames)]
        if not (behind := [rank for rank in collectives.behind(self.calls) if rank in found]):
            return by_stack
        late = {*behind, *(rank for rank in by_stack if not self.calls.get(rank))}
        return sorted(late.intersection(by_stack) or late)


def _silent(ranks: list[int], hosts: Mapping[int, str | None], present: Collection[int] | None) -> list[str]:
    """Describe the ranks whose guards have not answered, by host."""
    alike: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        what = "not answered" if present is None or rank in present else "ended"
        alike.setdefault((f" on host {host}" if (host := hosts.get(rank)) else "", what), []).append(rank)
    return [
        f"{ranks_text(same)}{on} {'has' if len(same) == 1 else 'have'} {what}" for (on, what), same in alike.items()
    ]


def _on(ranks: Collection[int], hosts: Mapping[int, str | None]) -> str:
    """Describe where ranks run, as far as that is known."""
    names = list(dict.fromkeys(host for rank in ranks if (host := hosts.get(rank))))
    more = f" and {len(names) - _HOSTS} more" if len(names) > _HOSTS else ""
    return f" on host {', '.join(names[:_HOSTS])}{more}" if names else ""


def _by_place(found: Mapping[int, Sequence[stacks.Frame]]) -> Iterable[tuple[str, list[int]]]:
    return collectives.alike((stacks.place(frames), rank) for rank, frames in found.items())


def _is_stopped(process: int) -> bool:
    stat = process_stat(process)
    return stat is not None and stat.state == "T"
