"""A worker that makes no progress: how it is noticed, and what is reported about where each rank is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from runner.guard import collectives, stacks
from runner.guard.board import Board
from runner.guard.collectives import Call
from runner.guard.messages import Message, Reason, Show, Stacks
from runner.guard.peers import Peers
from runner.rendezvous.topology import ranks_text

_STOPPED = 10  # looks, one per second, in which a worker is stopped before it counts as frozen
_ANSWERING = 6.0  # seconds that the other guards get to show their workers' calls and stacks
_REPORTING = 10.0  # seconds until rank 0's guard has reported a hang
_HOSTS = 3  # that are named per place
_ASKING = 10.0  # seconds between two questions about collectives, or a twentieth of what is allowed in one
_FRAMES = 12  # of a stack, in the report
_BETWEEN = 0.9  # seconds between two looks at least
_LONGEST = 3.0  # seconds that count between two looks: a job that was suspended has not hung


class Patience:
    """Whether a worker still makes progress. Asked at least once per second."""

    def __init__(
        self,
        worker: int,
        board: Board,
        hang_after: float,
        save_within: float = 0.0,
        in_collective: float = 0.0,
        requests: collectives.Requests | None = None,
    ) -> None:
        """Begin to watch.

        Args:
            hang_after: seconds without progress, 0 for any number.
            save_within: seconds in which a checkpoint is written, or ``hang_after`` if that is more.
            in_collective: seconds in one collective where no steps are reported, as outside of a training; 0 for any number.
            requests: by which the worker is asked in which collectives it waits.
        """
        self._worker, self._board, self._hang_after, self._save_within = worker, board, hang_after, save_within
        self._in_collective, self._requests = in_collective, requests
        self._looked = self._looked_at_process = self._asked = time.monotonic()
        self._mark: object = None  # changes with every progress; None: no progress is expected
        self._waiting: tuple[Call, ...] | None = None  # the collectives that the worker waits in
        self._is_asked, self._is_known = False, True  # whether it is to answer, and whether where it waits is known
        self._idle, self._unknown, self._stopped = 0.0, 0.0, 0  # unknown: seconds since the mark was known
        self.watched = 0.0  # seconds since the beginning, without those in which the job was suspended

    @property
    def is_stopped(self) -> bool:
        """Whether the worker was stopped by a signal when it was last looked at."""
        return self._stopped > 0

    def lost(self, *, has_met: bool = True) -> Reason | None:
        """Why the worker counts as hung; None if it does not. Before it has met the others only a stopped one does."""
        now, progress = time.monotonic(), self._board.read()
        passed, self._looked = min(now - self._looked, _LONGEST), now
        self.watched += passed
        allowed = self._allowed(progress.phase)
        mark = progress.at if allowed else self._collectives(now) if has_met else None
        self._unknown += passed
        if allowed or self._is_known:  # else it counts when the worker has answered
            self._idle = self._idle + self._unknown if mark is not None and mark == self._mark else 0.0
            self._mark, self._unknown = mark, 0.0
        if now - self._looked_at_process >= _BETWEEN:
            self._looked_at_process = now
            self._stopped = self._stopped + 1 if _is_stopped(self._worker) else 0
        if self._stopped >= _STOPPED:
            return Reason(f"stopped by a signal (SIGSTOP) for {_STOPPED} s", is_stopped=True)
        if mark is not None and self._idle > (limit := allowed or self._in_collective):
            where = f"after step {progress.step}" if progress.step else "before the first step"
            saving = ", while it saves" if progress.phase == "saving" else ""
            is_by_collective = limit == self._save_within and limit > self._hang_after
            return Reason(
                f"no progress for {limit:.0f} s, {where + saving if allowed else 'in a collective'}",
                option="--collective-timeout" if is_by_collective else Reason.option,
            )
        return None

    def _collectives(self, now: float) -> tuple[Call, ...] | None:
        """The collectives in which the worker waits, as far as it has answered; None if there are none."""
        if self._requests is None or not self._in_collective:
            return None
        if (calls := self._requests.answered()) is not None:
            self._waiting = tuple(call for call in calls if not call.is_over) or None
            self._is_asked = False
        self._is_known = not self._is_asked
        if not self._is_asked and now - self._asked > min(_ASKING, self._in_collective / 20):
            self._requests.ask()
            self._asked, self._is_asked = now, True
        return self._waiting

    def _allowed(self, phase: str) -> float:
        """Seconds without progress that this phase may have, 0 for any number."""
        if phase in ("training", "evaluating"):
            return self._hang_after
        return max(self._hang_after, self._save_within) if phase == "saving" and self._hang_after else 0.0


class Hang:
    """What is known about a hang: why ranks count as hung, and the stacks of all of them."""

    def __init__(
        self,
        worker: int,
        file: IO[Any],
        rank: int = 0,
        size: int = 1,
        calls: Callable[[], list[Call]] = list,
        attempt: int = 0,
    ) -> None:
        """``calls`` asks the worker what it has called last."""
        self._worker, self._file, self._rank, self._size, self._calls = worker, file, rank, size, calls
        self._attempt = attempt
        self.reasons: dict[int, Reason] = {}  # by rank
        self.stacks: dict[int, str | None] = {}  # None: the worker has ended well
        self.calls: dict[int, list[Call]] = {}  # by rank; empty: it did not answer
        self.is_reported = False
        self.silent: list[int] = []  # the ranks whose guards have not answered, once it is reported
        self.late: list[int] = []  # the ranks that the others wait for
        self.has_ended = False  # the worker, well
        self._answers_by: float | None = None  # once the other guards were asked for stacks
        self._reported_by = 0.0

    @property
    def is_own(self) -> bool:
        """Whether this worker counts as hung."""
        return self._rank in self.reasons

    def begin(self, reason: Reason) -> Reason:
        """This worker counts as hung. Returns what rank 0's guard is to know."""
        self.reasons[self._rank] = reason = replace(reason, attempt=self._attempt)
        self._reported_by = time.monotonic() + _REPORTING
        return reason

    def fix(self, how_to_resume: str) -> str:
        """What to do about it.

        Args:
            how_to_resume: "" if that is not known.
        """
        is_slow = not self.silent and not any(reason.is_stopped for reason in self.reasons.values())
        option = next((reason.option for reason in self.reasons.values()), Reason.option)
        slow = f"if it is only slow, allow more with {option}" if is_slow else ""
        return "; ".join(filter(None, (slow, how_to_resume)))

    def waits(self) -> bool:
        """Whether a guard whose worker has hung, and ended, is to stay until that is reported."""
        return self.is_own and not self.is_reported and time.monotonic() < self._reported_by

    def take(self, rank: int, message: Message) -> Stacks | None:
        """A message of another guard. Returns the answer, if it asks for one."""
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
        """Where this worker is now."""
        frames = stacks.main_thread(stacks.take(self._worker, self._file))
        in_kernel = "" if frames else stacks.place_in_kernel(self._worker)
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
        if peers.is_middle and self._answers_by is None:
            peers.tell(Show(self._attempt))
            self._look_at_own()
            self._answers_by = time.monotonic() + _ANSWERING
        elif self._answers_by and (len(self.stacks) == self._size or time.monotonic() > self._answers_by):
            return self.report(range(self._size), hosts, peers.present)
        return ""

    def _look_at_own(self) -> None:
        """Take this worker's calls, and its stacks, None if it has ended."""
        # First: the signal that takes the stacks may end the wait in which the worker is.
        if not self.has_ended:
            self.calls[self._rank] = self._calls()
        self.stacks[self._rank] = None if self.has_ended else stacks.take(self._worker, self._file)

    def report(
        self,
        ranks: Iterable[int],
        hosts: Mapping[int, str | None] | None = None,
        present: Collection[int] | None = None,
    ) -> str:
        """One line that names the ranks that others wait for, then the process groups in which ranks wait, and the stacks, equal ones once.

        Args:
            present: the ranks that have not left; None: all.
        """
        self.is_reported = True
        self.silent = [rank for rank in ranks if rank not in self.stacks]
        shown = {rank: self.stacks[rank] for rank in ranks if rank in self.stacks}
        found = {rank: stacks.main_thread(text) for rank, text in shown.items() if text is not None}
        frozen = {rank: reason for rank, reason in self.reasons.items() if reason.is_stopped}
        late = {rank: frames for rank, frames in found.items() if rank in frozen or not stacks.waits(frames)}
        self.late = self.silent or [*frozen] or [*late] or [*self.reasons]
        waiting = {rank: frames for rank, frames in found.items() if rank not in late}
        reason = next(iter((frozen or self.reasons).values()))
        hosts = hosts or {}
        where = _silent(self.silent, hosts, present)
        where += [f"{ranks_text(same)}{_on(same, hosts)} in {place}" for place, same in _by_place(late).items()]
        where += [f"{ranks_text(same)} waiting in {place}" for place, same in _by_place(waiting).items()]
        lines = [f"{reason.text}: {'; '.join(where)}", *collectives.lines(self.calls)]
        for same, frames in _merged(found):
            lines.append(f"{ranks_text(same)}, most recent call first:")
            lines += [
                f'  File "{one.file}", line {one.line}, in {one.function}'
                for one in stacks.of_program(frames)[:_FRAMES]
            ]
        return "\n".join(lines)


def _silent(ranks: list[int], hosts: Mapping[int, str | None], present: Collection[int] | None) -> list[str]:
    """What is known of ranks whose guards have not answered, by host."""
    alike: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        what = "not answered" if present is None or rank in present else "ended"
        alike.setdefault((f" on host {host}" if (host := hosts.get(rank)) else "", what), []).append(rank)
    return [
        f"{ranks_text(same)}{on} {'has' if len(same) == 1 else 'have'} {what}" for (on, what), same in alike.items()
    ]


def _on(ranks: Collection[int], hosts: Mapping[int, str | None]) -> str:
    """Where ranks run, as far as it is known."""
    names = list(dict.fromkeys(host for rank in ranks if (host := hosts.get(rank))))
    more = f" and {len(names) - _HOSTS} more" if len(names) > _HOSTS else ""
    return f" on host {', '.join(names[:_HOSTS])}{more}" if names else ""


def _by_place(found: dict[int, list[stacks.Frame]]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for rank, frames in found.items():
        places.setdefault(stacks.place(frames), []).append(rank)
    return places


def _merged(found: dict[int, list[stacks.Frame]]) -> list[tuple[list[int], list[stacks.Frame]]]:
    same: dict[tuple[stacks.Frame, ...], list[int]] = {}
    for rank, frames in found.items():
        same.setdefault(tuple(frames), []).append(rank)
    return [(ranks, list(frames)) for frames, ranks in same.items()]


def _is_stopped(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
