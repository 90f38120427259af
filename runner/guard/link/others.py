"""Reports of other ranks' guards about the ends of their workers; rank 0's guard prints them if nobody else does."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from runner.guard.link.messages import Ends, Returned
from runner.guard.report.console import Console
from runner.guard.settings import Words

_JUST = 5.0  # seconds in which a launcher ends a job for it


class Others:
    """Reports of other ranks during this attempt."""

    def __init__(self, words: Words, hosts: Mapping[int, str | None], console: Console) -> None:
        """``hosts``: of the ranks, as far as they are known."""
        self._words, self._hosts, self._console = words, hosts, console
        self.ends_with: int | None = None  # the code with which all ranks end, as one of them has said
        self._why = ""  # why they end
        self._left: dict[int, tuple[float, str]] = {}  # ranks that have left without a word: when, and how

    def end(self, rank: int, message: Ends) -> None:
        """All ranks end, as this one has said."""
        self.ends_with, self._why = message.code, f"{self._named(rank)}: {message.why}"

    def has_returned(self, rank: int, message: Returned) -> None:
        """A rank has ended with code 0."""
        if message.how:
            self._left[rank] = time.monotonic(), message.how

    def have_left_before(self, rank: int) -> bool:
        """Whether a rank below this one has left without a word, and is to say so."""
        return any(other < rank for other in self._left)

    def say_why(self) -> None:
        """Print what another rank takes for every rank's error, and so only rank 0 would print. Call where its own worker has not had it."""
        if self._why and self._words.is_reporting:
            self._console.say(self._why, is_named=False, last=True)
            self._why = ""

    def say_who_left(self, present: Collection[int]) -> None:
        """Print which rank has just left without a word, for which MPI's launchers end a job.

        Args:
            present: ranks whose guards are still there, and say so themselves.
        """
        for rank, (at, how) in self._left.items():
            is_reporting = self._words.rank == (1 if rank == 0 else 0)
            if is_reporting and rank not in present and time.monotonic() - at < _JUST:
                self._console.say(f"{self._named(rank)}: ended with code 0, {how}", is_named=False, last=True)
                self._left.clear()
                return

    def _named(self, rank: int) -> str:
        return f"rank {rank} of {self._words.size} on host {self._hosts.get(rank) or 'unknown'}"
