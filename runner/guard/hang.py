"""A worker that makes no progress: how it is noticed, and what is reported about where each rank is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from runner.guard import stacks
from runner.guard.board import Board
from runner.rendezvous.topology import ranks_text

_STOPPED = 10  # looks, one per second, in which a worker is stopped before it counts as frozen
_ANSWERING = 4.0  # seconds that the other guards get to show their workers' stacks
_FRAMES = 12  # of a stack, in the report
_LONGEST = 3.0  # seconds that count between two looks: a job that was suspended has not hung


class Patience:
    """Whether a worker still makes progress. Asked about once per second."""

    def __init__(self, worker: int, board: Board, hang_after: float) -> None:
        """``hang_after``: seconds without progress in a training, 0 for any number."""
        self._worker, self._board, self._hang_after = worker, board, hang_after
        self._looked = time.monotonic()
        self._at, self._idle, self._stopped = 0.0, 0.0, 0

    def lost(self) -> str:
        """Why the worker counts as hung; "" if it does not."""
        now, progress = time.monotonic(), self._board.read()
        passed, self._looked = min(now - self._looked, _LONGEST), now
        is_watched = progress.phase in ("training", "evaluating")
        self._idle = self._idle + passed if is_watched and progress.at == self._at else 0.0
        self._at = progress.at
        if passed >= 0.5:
            self._stopped = self._stopped + 1 if _is_stopped(self._worker) else 0
        if self._stopped >= _STOPPED:
            return f"stopped by a signal (SIGSTOP) for {_STOPPED} s"
        if self._hang_after and self._idle > self._hang_after:
            return f"no progress for {self._hang_after:.0f} s, after step {progress.step}"
        return ""


class Hang:
    """What is known about a hang: why this rank counts as hung, and the stacks of all ranks."""

    def __init__(self, worker: int, file: IO[Any]) -> None:
        self._worker, self._file = worker, file
        self.reason = ""
        self.others: dict[int, str] = {}  # the same of other ranks
        self.stacks: dict[int, str] = {}
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

    def own_stacks(self) -> str:
        """Take this worker's stacks."""
        return "" if self.has_ended else stacks.take(self._worker, self._file)

    def report(self, ranks: Iterable[int]) -> str:
        """One line that names the ranks that others wait for, then the stacks, equal ones once."""
        found = {rank: stacks.main_thread(self.stacks.get(rank, "")) for rank in ranks}
        reasons = self.others | ({min(found): self.reason} if self.reason else {})
        frozen = {rank: reason for rank, reason in reasons.items() if "stopped" in reason}
        late = {rank: frames for rank, frames in found.items() if rank in frozen or not stacks.waits(frames)}
        waiting = {rank: frames for rank, frames in found.items() if rank not in late}
        reason = next(iter(frozen.values()), next(iter(reasons.values()), "no progress"))
        where = [f"{ranks_text(same)} in {place}" for place, same in _by_place(late).items()]
        where += [f"{ranks_text(same)} waiting in {place}" for place, same in _by_place(waiting).items()]
        lines = [f"{reason}: {'; '.join(where)}"]
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
