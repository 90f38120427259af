"""The line between the guards of a job: a star with rank 0's guard in the middle, which passes messages on.

What one guard tells, all others receive. So a rank that has failed, is frozen or has lost its host is known everywhere at once,
also where the launcher does not end the others.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from runner.base.errors import RunnerError
from runner.guard.board import MOST_ENDED
from runner.guard.libraries import in_library
from runner.guard.messages import Alive, Apart, Failed, Gone, Left, Message, Returned, ToMiddle, packed, unpacked
from runner.rendezvous.transport.client import Client, UnreachableError, connect
from runner.rendezvous.transport.protocol import ProtocolError
from runner.rendezvous.transport.server import Server

_LARGEST = 1 << 22  # bytes of a message: the stacks of a rank
_ROUND = 0.05  # seconds in which the middle looks for something to send
_BEAT = 5.0  # seconds between two signs of life
_SILENT = 30.0  # seconds without one after which a guard counts as gone
_JOINING = 10.0  # seconds for the connection to the middle
_SENDING = 1.0
_ENDED = "its guard has ended, with its host or by a signal"
_SILENCE = f"its host has not answered for {_SILENT:.0f} s"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the middle is, and who asks."""

    host: str
    port: int
    name: str = ""  # of the host there
    key: str  # hexadecimal
    rank: int
    size: int


class Line:
    """This guard's end. ``wake`` is the writing end of a pipe that gets a byte for each message."""

    def __init__(self, address: Address, listener: socket.socket | None, wake: int) -> None:
        """Join the line, in a thread. ``listener`` is that of rank 0's guard."""
        self._address, self._listener, self._wake = address, listener, wake
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.is_open = True
        self._middle: _Middle | None = None
        work = self._join if listener is None else self._serve
        self._thread = threading.Thread(target=work, name="line", daemon=True)
        self._thread.start()

    @property
    def present(self) -> set[int]:
        """The ranks whose guards have joined and not left, as far as this one knows: the middle knows all others."""
        return {self._address.rank, *(list(self._middle.last_received) if self._middle else ())}

    def silent(self) -> set[int]:
        """On rank 0: those from which it has not heard for two signs of life, as if their hosts cannot be reached."""
        heard = dict(self._middle.last_received) if self._middle else {}
        return {rank for rank, at in heard.items() if time.monotonic() - at > 2 * _BEAT}

    def received(self) -> list[tuple[int, Message]]:
        """The messages that have arrived, each after the rank that told it, or that is gone."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._inbox.get_nowait())
        return found

    def tell(self, message: Message) -> None:
        """Tell all other guards, or only rank 0's: see the message."""
        if self.is_open:
            self._outbox.put(message)

    def close(self) -> None:
        """Leave, after what was told is sent; within a second or two."""
        self._outbox.put(Left())
        self._outbox.put(None)
        self._thread.join(2 * _SENDING)

    def _deliver(self, rank: int, message: Message) -> None:
        self._inbox.put((rank, message))
        with contextlib.suppress(OSError):
            os.write(self._wake, b"l")

    def _serve(self) -> None:
        assert self._listener is not None
        server = Server(self._listener, bytes.fromhex(self._address.key), self._address.size, _LARGEST)
        with contextlib.suppress(OSError, RunnerError), server:
            self._middle = _Middle(server, self._outbox, self._deliver)
            self._middle.serve()
        self.is_open = False

    def _join(self) -> None:
        one = self._address
        try:
            client = self._connect()
        except (OSError, ProtocolError) as error:
            self.is_open = False  # the launcher alone ends the ranks then
            # Where nothing listens any more the job is about to end.
            if isinstance(error, (UnreachableError, socket.gaierror)):
                self._deliver(one.rank, Apart(f"{one.host}:{one.port}: {error.strerror}"))
            return
        with client:
            if why := self._talk(client):
                self._deliver(0, Gone(why))
        self.is_open = False

    def _connect(self) -> Client:
        one, end = self._address, time.monotonic() + _JOINING
        while True:
            try:
                # Bytes: for a str Python imports a codec, here in a thread. A process that the guard forks meanwhile would wait
                # without end for the lock of that import.
                with in_library():
                    family = socket.getaddrinfo(one.host.encode(), one.port, type=socket.SOCK_STREAM)[0][0]
                return connect(family, (one.host, one.port), bytes.fromhex(one.key), one.rank, _JOINING)
            except (OSError, ProtocolError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def _talk(self, client: Client) -> str:
        """Send and receive until one side leaves. Returns why rank 0 counts as gone.

        "": a side has said that it leaves, or rank 0's had not noticed that this guard has come.
        """
        received = sent = looked = time.monotonic()
        has_joined, is_heard = False, True
        while True:
            now = time.monotonic()
            if now - looked > _BEAT:  # this process was suspended, and perhaps the others, too
                received = now
            looked = now
            try:
                if now - sent > _BEAT:
                    self._outbox.put(Alive())
                    sent = now
                while is_heard:
                    message = self._outbox.get_nowait()
                    if message is None:
                        return ""
                    client.send(packed(self._address.rank, message), _SENDING)
            except queue.Empty:
                pass
            except TimeoutError:
                return _SILENCE if has_joined else ""
            except OSError:
                is_heard = False  # the other end is closed; it may have said before that it leaves
            try:
                rank, told = unpacked(client.receive(2 * _ROUND))
                received, has_joined = now, True
                if isinstance(told, Left):
                    return ""
                if not isinstance(told, Alive):
                    self._deliver(rank, told)
            except TimeoutError:
                if now - received > _SILENT:
                    return _SILENCE
            except (OSError, ProtocolError):
                return _ENDED if has_joined else ""


class _Middle:
    """Rank 0's guard: it passes messages on, and notices who is gone."""

    def __init__(
        self, server: Server, outbox: queue.SimpleQueue[Message | None], deliver: Callable[[int, Message], None]
    ) -> None:
        self._server, self._outbox, self._deliver = server, outbox, deliver
        self._told: list[list[object]] = []  # for those that join later
        self.last_received: dict[int, float] = {}  # by rank: when it was last received; not those that have left
        self._left: set[int] = set()
        self._returned: Counter[int] = Counter()  # ranks of which was passed on that they have, by attempt

    def serve(self) -> None:
        sent = looked = time.monotonic()
        while True:
            now = time.monotonic()
            if now - looked > _BEAT:
                self.last_received = dict.fromkeys(self.last_received, now)
            looked = now
            with contextlib.suppress(queue.Empty):
                while True:
                    own = self._outbox.get_nowait()
                    if own is None:
                        return
                    if not isinstance(own, ToMiddle):
                        self._pass_on(0, own)
            if now - sent > _BEAT:
                sent = now
                self._pass_on(0, Alive())
            for peer, message in self._server.receive(_ROUND):
                if peer.rank is not None:
                    self._take(peer.rank, unpacked(message)[1])  # of the rank that it has proved
            for rank in self._server.ranks.keys() - self.last_received.keys() - self._left:
                self.last_received[rank] = now
                for message in [packed(0, Alive()), *self._told]:  # the first says that it has joined
                    self._server.send(rank, message, _SENDING)
            self._look_for_the_gone(now)

    def _take(self, rank: int, message: Message) -> None:
        self.last_received[rank] = time.monotonic()
        if isinstance(message, Left):
            self._left.add(rank)
            self.last_received.pop(rank, None)
        elif not isinstance(message, Alive | ToMiddle):
            self._pass_on(rank, message)
        if not isinstance(message, Alive):
            self._deliver(rank, message)

    def _look_for_the_gone(self, now: float) -> None:
        for rank, received in list(self.last_received.items()):
            reason = ""
            if rank not in self._server.ranks:
                reason = _ENDED
            elif now - received > _SILENT:
                reason = _SILENCE
            if reason:
                # First: a rank that is absent without a message counts as one that has done its work.
                self._deliver(rank, Gone(reason))
                del self.last_received[rank]
                self._left.add(rank)
                self._pass_on(rank, Gone(reason))

    def _pass_on(self, rank: int, message: Message) -> None:
        whole = packed(rank, message)
        if isinstance(message, Returned):
            self._returned[message.attempt] += 1
            if self._returned[message.attempt] > MOST_ENDED:  # at the end of a job all ranks do, and some are enough
                return
        if isinstance(message, Failed | Gone):
            self._told.append(whole)
        for other in self.last_received.keys() & self._server.ranks.keys():
            if other != rank:
                self._server.send(other, whole, _SENDING)
