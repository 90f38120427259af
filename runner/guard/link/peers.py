"""The guards of the other ranks: the link to them, and what they say of the attempt that runs."""

from __future__ import annotations

import queue
import time
from collections.abc import Collection, Mapping, Sequence

from runner.guard.link.link import Address, Link
from runner.guard.link.messages import Ends, Failed, HostName, Left, Message, Returned, attempt_of
from runner.guard.process.events import Events
from runner.guard.report.console import Console
from runner.guard.settings import Words

_JUST_LEFT_SECONDS = 5.0  # seconds in which a launcher ends a job for a rank that has left
_JOIN_SECONDS = 15.0  # seconds after the rendezvous in which a guard joins the link, if it can reach rank 0's


class Restarts:
    """The attempts of a job: all ranks start again after a failure (``--restart-in-place``)."""

    def __init__(self, most: int, rank: int, size: int) -> None:
        """``most``: how often all ranks are started again."""
        self.most, self._rank, self._size = most, rank, size
        self.attempt = 0
        self.is_possible = most > 0  # as far as the other guards say
        self.done: set[int] = set()  # ranks whose workers have ended well in this attempt

    def next(self) -> None:
        """Begin another attempt."""
        self.attempt += 1
        self.done = set()

    def finish(self) -> bool:
        """Note that this rank's worker has ended well. Return whether that is new."""
        is_new = self._rank not in self.done
        self.done.add(self._rank)
        return is_new

    def unfinished(self, known: set[int] | None = None) -> set[int]:
        """Return the other ranks that have not ended well. ``known``: the ranks whose end would be told; None: all."""
        return (set(range(self._size)) if known is None else known) - self.done - {self._rank}


class Peers:
    """The other ranks' guards as one guard sees them; none before the first rendezvous, or if rank 0's cannot be reached."""

    def __init__(self, rank: int, link: Link, events: Events, restarts: Restarts) -> None:
        """``link``: the agent's."""
        self._rank, self._link, self._events, self._restarts = rank, link, events, restarts
        self.is_hub = rank == 0 and link.listener is not None  # whether this is the guard that the others report to
        self._has_joined = False
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._early: list[tuple[int, Message]] = []  # of guards that have begun the next attempt

    @property
    def are_reached(self) -> bool:
        """Whether the link to the other guards is open."""
        return self._has_joined and self._link.is_open

    @property
    def present(self) -> set[int]:
        """The ranks whose guards are on the link, as far as this one is to know: rank 0's knows all. None before it has joined."""
        others = self._link.present() if self._rank == 0 else set()
        return {self._rank, *others} if self._has_joined else set()

    @property
    def silent(self) -> set[int]:
        """Return, on rank 0, the ranks whose guards have been silent for a while."""
        return self._link.silent() if self._has_joined else set()

    def known(self, met_at: float | None) -> set[int] | None:
        """Return, on rank 0, the ranks whose guards are on the link, once all have had the time to join; None means all.

        Args:
            met_at: when the rendezvous was complete.
        """
        has_had_time = met_at is not None and time.monotonic() - met_at > _JOIN_SECONDS
        return self.present if self._has_joined and self.is_hub and has_had_time else None

    def join(self, address: Address, host: str | None) -> bool:
        """Join the link, after the first rendezvous. Returns whether that is new. ``host``: this one's name."""
        if self._has_joined or (address.rank == 0 and not self.is_hub):
            return False
        self._link.join(address, self._deliver)
        self._has_joined = True
        self.tell(HostName(host))
        return True

    def tell(self, message: Message | None) -> None:
        """Tell all other guards, or only rank 0's: see the message."""
        if self._has_joined and message:
            self._link.tell(self._rank, message)

    def received(self) -> list[tuple[int, Message]]:
        """Return the messages since the last call, each after the rank that told it, without those of attempts that are over.

        What is of the next attempt is kept until that begins here, too.
        """
        arrived = self._inbox.qsize() if self._events.has_messages() else 0
        known, self._early = [*self._early, *(self._inbox.get() for _ in range(arrived))], []
        taken = []
        for rank, message in known:
            attempt = attempt_of(message)
            if attempt is not None and attempt > self._restarts.attempt:
                self._early.append((rank, message))
            elif attempt in (None, self._restarts.attempt) or _is_final(message):
                taken.append((rank, message))
        return taken

    def leave(self) -> None:
        """Leave the link, after all that was told is sent; within a second or two."""
        if self._has_joined:
            self._link.leave(self._rank, Left())

    def _deliver(self, told: Sequence[tuple[int, Message]]) -> None:
        """Called in the thread of the link, or of a rank of this host."""
        for one in told:
            self._inbox.put(one)
        if told:
            self._events.wake()


class Others:
    """Reports of other ranks' guards about the ends of their workers, in one attempt. Rank 0's guard prints them if nobody else does."""

    def __init__(self, words: Words, hosts: Mapping[int, str | None], console: Console) -> None:
        """``hosts``: of the ranks, as far as they are known."""
        self._words, self._hosts, self._console = words, hosts, console
        self.ends_with: int | None = None  # the code with which all ranks end, as one of them has said
        self._why = ""  # why they end
        self._left: dict[int, tuple[float, str]] = {}  # ranks that have left without a word: when, and how

    def end(self, rank: int, message: Ends) -> None:
        """Note that all ranks end, as this one has said."""
        self.ends_with, self._why = message.code, f"{self._named(rank)}: {message.why}"

    def has_returned(self, rank: int, message: Returned) -> None:
        """Note that a rank has ended with code 0."""
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
            if is_reporting and rank not in present and time.monotonic() - at < _JUST_LEFT_SECONDS:
                self._console.say(f"{self._named(rank)}: ended with code 0, {how}", is_named=False, last=True)
                self._left.clear()
                return

    def _named(self, rank: int) -> str:
        return f"rank {rank} of {self._words.size} on host {self._hosts.get(rank) or 'unknown'}"


def _is_final(message: Message) -> bool:
    """Return whether a message ends the job also in a later attempt, because the rank will not be there."""
    return isinstance(message, Failed) and not message.again
