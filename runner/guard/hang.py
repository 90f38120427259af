"""A worker that makes no progress: how it is noticed, and what is reported about where each rank is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from runner.guard import stacks
from runner.guard.board import Board
from runner.rendezvous.topology import ranks_text

_STOPPED = 10  # looks, one per second, in which a worker is stopped before it counts as frozen
_ANSWERING = 4.0  # seconds that the other guards get to show their workers' stacks
_FRAMES = 12  # of a stack, in the report
_LONGEST = 3.0  # seconds that count between two looks: a job that was suspended has not hung


@dataclass(frozen=True)
class Reason:
    """Why a worker counts as hung."""

    text: str
    is_stopped: bool = False  # by a signal, wherever it was


class Patience:
    """Whether a worker still makes progress. Asked about once per second."""

    def __init__(self, worker: int, board: Board, hang_after: float) -> None:
        """``hang_after``: seconds without progress in a training, 0 for any number."""
        self._worker, self._board, self._hang_after = worker, board, hang_after
        self._looked = time.monotonic()
        self._at, self._idle, self._stopped = 0.0, 0.0, 0

    def lost(self) -> Reason | None:
        """Why the worker counts as hung; None if it does not."""
        now, progress = time.monotonic(), self._board.read()
        passed, self._looked = min(now - self._looked, _LONGEST), now
        is_watched = progress.phase in ("training", "evaluating")
        self._idle = self._idle + passed if is_watched and progress.at == self._at else 0.0
        self._at = progress.at
        if passed >= 0.5:
            self._stopped = self._stopped + 1 if _is_stopped(self._worker) else 0
        if self._stopped >= _STOPPED:
            return Reason(f"stopped by a signal (SIGSTOP) for {_STOPPED} s", is_stopped=True)
        if self._hang_after and self._idle > self._hang_after:
            return Reason(f"no progress for {self._hang_after:.0f} s, after step {progress.step}")
        return None


class Hang:
    """What is known about a hang: why ranks count as hung, and the stacks of all of them."""

    def __init__(self, worker: int, file: IO[Any]) -> None:
        self._worker, self._file = worker, file
        self.reasons: dict[int, Reason] = {}  # by rank
        self.stacks: dict[int, str | None] = {}  # None: the worker has ended well
        self.is_reported = False
        self.has_ended = False  # the worker, well
        self._until: float | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the other guards were asked for stacks."""
        return self._until is not None

    def wait(self) -> None:
        """Give the others time to answer."""
        self._until = time.monotonic() + _ANSWERING

    def is_complete(self, size: int) -> bool:
        """Whether all have answered, or have had the time."""
        return len(self.stacks) == size or (self._until is not None and time.monotonic() > self._until)

    def own_stacks(self) -> str | None:
        """Take this worker's stacks; None if it has ended."""
        return None if self.has_ended else stacks.take(self._worker, self._file)

    def report(self, ranks: Iterable[int]) -> str:
        """One line that names the ranks that others wait for, then the stacks, equal ones once."""
        shown = {rank: self.stacks.get(rank, "") for rank in ranks}
        found = {rank: stacks.main_thread(text) for rank, text in shown.items() if text is not None}
        frozen = {rank: reason for rank, reason in self.reasons.items() if reason.is_stopped}
        late = {rank: frames for rank, frames in found.items() if rank in frozen or not stacks.waits(frames)}
        waiting = {rank: frames for rank, frames in found.items() if rank not in late}
        reason = next(iter((frozen or self.reasons).values()))
        where = [f"{ranks_text(same)} in {place}" for place, same in _by_place(late).items()]
        where += [f"{ranks_text(same)} waiting in {place}" for place, same in _by_place(waiting).items()]
        lines = [f"{reason.text}: {'; '.join(where)}"]
        for same, frames in _merged(found):
            lines.append(f"{ranks_text(same)}, most recent call first:")
            lines += [
                f'  File "{one.file}", line {one.line}, in {one.function}'
                for one in stacks.of_program(frames)[:_FRAMES]
            ]
        return "\n".join(lines)


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
