"""The control link between the hosts of a job: a star with the agent of rank 0's host as its hub, which passes messages on.

What is told of one rank, the guards of all others receive. So a rank that has failed, is frozen or has lost its host is known
everywhere at once, also where the launcher does not end the others. An agent has one connection, however many ranks are on its host.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runner.base.errors import RendezvousError, RunnerError
from runner.guard.link.messages import (
    Alive,
    Apart,
    Failed,
    Gone,
    Joined,
    Left,
    Message,
    Returned,
    ToHub,
    packed,
    unpacked,
)
from runner.guard.process.forks import in_library
from runner.guard.report.board import MOST_ENDED
from runner.rendezvous.transport.client import Client, UnreachableError, connect
from runner.rendezvous.transport.endpoint import listen
from runner.rendezvous.transport.protocol import ProtocolError, text_of
from runner.rendezvous.transport.server import Server

_NOBODY = -1  # in the place of the rank that has told a message
_LARGEST_BYTES = 1 << 22  # bytes of a message: the stacks of a rank
_ROUND_SECONDS = 0.05  # seconds in which the hub looks for something to send
_HEARTBEAT_SECONDS = 5.0  # seconds between two signs of life
_SILENT_SECONDS = 30.0  # seconds without one after which an agent counts as gone
_JOIN_SECONDS = 10.0  # seconds for the connection to the hub
_SEND_SECONDS = 1.0
_ENDED = "its host's agent has ended, with the host or by a signal"
_SILENCE = f"its host has not answered for {_SILENT_SECONDS:.0f} s"

Deliver: TypeAlias = Callable[[Sequence[tuple[int, Message]]], None]


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of the hub, and the rank that connects."""

    host: str
    port: int
    name: str = ""  # of the host there
    key: str  # hexadecimal
    rank: int
    size: int


class Link:
    """An agent's end of the link, for all its ranks."""

    def __init__(self) -> None:
        self.listener: socket.socket | None = None  # the hub's, on rank 0's host
        self.is_open = False
        self._ranks: dict[int, Deliver] = {}  # those that have not left
        self._told: list[tuple[int, Message]] = []  # for ranks that join later
        self._has_had_rank_0 = False
        self._lock = threading.Lock()
        self._outbox: queue.SimpleQueue[tuple[int, Message] | None] = queue.SimpleQueue()
        self._hub: _Hub | None = None
        self._thread: threading.Thread | None = None
        self._address: Address | None = None  # of the rank that has joined last

    def listen(self) -> None:
        """Become the hub: on rank 0's host, before its worker is started."""
        with contextlib.suppress(OSError):  # the job runs without a link
            self.listener = listen(loopback=False)

    def join(self, address: Address, deliver: Deliver) -> None:
        """Let a rank join. ``deliver`` is called with messages to it, each after the rank that told it, or that is gone."""
        with self._lock:
            told, self._ranks[address.rank] = list(self._told), deliver
            self._has_had_rank_0 = self._has_had_rank_0 or address.rank == 0
            self._outbox.put((address.rank, Joined()))
            if self._thread is None:
                self._start(address)
            self._address = address
        deliver(_for_rank(address.rank, told))

    def _start(self, address: Address) -> None:
        self.is_open = True
        work = self._join if self.listener is None else self._serve
        self._thread = threading.Thread(target=work, args=(address,), name="link", daemon=True)
        self._thread.start()

    def present(self) -> set[int]:
        """Return the ranks that have joined and not left, as far as this agent knows: the hub's knows all."""
        with self._lock:
            own = set(self._ranks)
        return own | (self._hub.present() if self._hub else set())

    def silent(self) -> set[int]:
        """Return, at the hub, the ranks whose hosts have missed two heartbeats."""
        return self._hub.silent() if self._hub else set()

    def tell(self, rank: int, message: Message) -> None:
        """Tell all other ranks, or only rank 0: see the message."""
        self.deliver([(rank, message)])
        if self.is_open and not (isinstance(message, ToHub) and self.listener):
            self._outbox.put((rank, message))

    def deliver(self, told: Sequence[tuple[int, Message]]) -> None:
        """Deliver messages, each after the rank that has told it, to the other ranks of this host."""
        with self._lock:
            has_no_rank_0 = self.listener is not None and not self._has_had_rank_0
            self._told += [
                one
                for one in told
                if isinstance(one[1], Failed | Gone) or (isinstance(one[1], ToHub) and has_no_rank_0)
            ]
            own = list(self._ranks.items())
        for rank, deliver in own:
            deliver(_for_rank(rank, told))

    def leave(self, rank: int, last: Message) -> None:
        """Let a rank leave, after what it has told is sent; within a second or two."""
        self.deliver([(rank, last)])
        with self._lock:  # in one: else what another one tells as its last could come after the end
            self._ranks.pop(rank, None)
            self._outbox.put((rank, last))
            thread = None if self._ranks else self._thread
            if thread is not None:
                self._outbox.put(None)
        if thread is None:
            return
        thread.join(2 * _SEND_SECONDS)
        with self._lock:
            if self._ranks and self.listener is None and self._address is not None:  # it has joined meanwhile
                self._start(self._address)
            elif not self._ranks:  # another job of this agent's may begin
                if self.listener is not None:
                    self.listener.close()
                self._thread = self._hub = self.listener = None
                self._told.clear()
                self._has_had_rank_0 = False

    def _serve(self, address: Address) -> None:
        assert self.listener is not None
        server = Server(self.listener, bytes.fromhex(address.key), address.size, _LARGEST_BYTES)
        try:
            with contextlib.suppress(OSError, RunnerError), server:
                self._hub = _Hub(server, self._outbox, self.deliver)
                self._hub.serve()
        finally:
            self.is_open = False

    def _join(self, one: Address) -> None:
        try:
            client = self._connect(one)
        except (OSError, ProtocolError) as error:
            self.is_open = False  # the launcher alone ends the ranks then
            # Where nothing listens any more the job is about to end.
            if isinstance(error, (UnreachableError, socket.gaierror)):
                self.deliver([(_NOBODY, Apart(f"{one.host}:{one.port}: {error.strerror}"))])
            return
        with client:
            if why := self._talk(client):
                self.deliver([(0, Gone(why))])
        self.is_open = False

    def _connect(self, one: Address) -> Client:
        end = time.monotonic() + _JOIN_SECONDS
        while True:
            try:
                # Bytes: for a str Python imports a codec, here in a thread. A process that the agent forks meanwhile would wait
                # without end for the lock of that import.
                with in_library():
                    family = socket.getaddrinfo(one.host.encode(), one.port, type=socket.SOCK_STREAM)[0][0]
                return connect(family, (one.host, one.port), bytes.fromhex(one.key), one.rank, _JOIN_SECONDS)
            except (OSError, ProtocolError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def _talk(self, client: Client) -> str:
        """Send and receive until one side leaves. Returns why rank 0 counts as gone.

        "": a side has said that it leaves, or the hub had not noticed that this agent has come.
        """
        received = sent = looked = time.monotonic()
        has_joined, is_heard = False, True
        while True:
            now = time.monotonic()
            if now - looked > _HEARTBEAT_SECONDS:  # this process was suspended, and perhaps the others, too
                received = now
            looked = now
            try:
                if now - sent > _HEARTBEAT_SECONDS:
                    client.send(packed(0, Alive()), _SEND_SECONDS)
                    sent = now
                while is_heard:
                    told = self._outbox.get_nowait()
                    if told is None:
                        return ""
                    client.send(packed(*told), _SEND_SECONDS)
            except queue.Empty:
                pass
            except TimeoutError:
                return _SILENCE if has_joined else ""
            except OSError:
                is_heard = False  # the other end is closed; it may have said before that it leaves
            try:
                rank, message = unpacked(client.receive(2 * _ROUND_SECONDS))
                received, has_joined = now, True
                if isinstance(message, Left) and rank == 0:
                    return ""
                if not isinstance(message, Alive | Left):
                    self.deliver([(rank, message)])
            except TimeoutError:
                if now - received > _SILENT_SECONDS:
                    return _SILENCE
            except (OSError, ProtocolError):
                return _ENDED if has_joined else ""


def _for_rank(rank: int, told: Sequence[tuple[int, Message]]) -> list[tuple[int, Message]]:
    """Return the messages that concern a rank, without its own."""
    for_rank_0 = () if rank == 0 else (ToHub, Left)
    return [(source, message) for source, message in told if source != rank and not isinstance(message, for_rank_0)]


class _Hub:
    """The hub on rank 0's host: it passes messages on, and notices which hosts are gone."""

    def __init__(self, server: Server, outbox: queue.SimpleQueue[tuple[int, Message] | None], deliver: Deliver) -> None:
        self._server, self._outbox, self._deliver = server, outbox, deliver
        self._told: list[bytes] = []  # for those that join later
        self._received: list[tuple[int, Message]] = []  # in this round, for the ranks of this host
        self._to_send: list[tuple[int, bytes]] = []  # in this round, to all agents but this one
        self._heard: dict[int, float] = {}  # by the rank that an agent has connected as: when it was last heard
        self._ranks: dict[int, set[int]] = {}  # by the same: its ranks that have joined and not left
        self._greeted: set[int] = set()
        self._has_left = False  # rank 0 has, so that the other agents close their connections
        self._returned: Counter[int] = Counter()  # ranks of which was passed on that they have, by attempt

    def present(self) -> set[int]:
        """Return the other hosts' ranks that have joined and not left."""
        return set().union(*list(self._ranks.values()))

    def silent(self) -> set[int]:
        """Return the ranks of hosts that have missed two heartbeats."""
        now = time.monotonic()
        late = [agent for agent, at in list(self._heard.items()) if now - at > 2 * _HEARTBEAT_SECONDS]
        return set().union(*(self._ranks.get(agent, set()) for agent in late))

    def serve(self) -> None:
        sent = looked = time.monotonic()
        while True:
            now = time.monotonic()
            if now - looked > _HEARTBEAT_SECONDS:  # this process was suspended, and perhaps the others, too
                self._heard = dict.fromkeys(self._heard, now)
            looked = now
            with contextlib.suppress(queue.Empty):
                while True:
                    own = self._outbox.get_nowait()
                    if own is None:
                        self._send()
                        return
                    self._pass_on(*own)
                    self._has_left = self._has_left or (own[0] == 0 and isinstance(own[1], Left))
            if now - sent > _HEARTBEAT_SECONDS:
                sent = now
                self._pass_on(0, Alive())
            self._send()
            self._receive()
            self._send()  # first: who comes now gets what all have been told
            for agent in self._server.ranks.keys() - self._greeted:
                self._greeted.add(agent)
                self._heard.setdefault(agent, now)
                # The first says that it has joined.
                self._server.send(agent, text_of(packed(0, Alive())), *self._told, within=_SEND_SECONDS)
            self._look_for_the_gone(now)
            if self._received:  # at once: each waking of a guard's thread costs
                received, self._received = self._received, []
                self._deliver(received)

    def _receive(self) -> None:
        try:
            for peer, message in self._server.receive(_ROUND_SECONDS):
                if peer.rank is not None:
                    self._take(peer.rank, *unpacked(message))
        except RendezvousError:  # it may open no more files: the launcher alone ends the ranks of hosts that come now
            self._server.stop_accepting()

    def _take(self, agent: int, rank: int, message: Message) -> None:
        self._heard[agent] = time.monotonic()
        match message:
            case Alive():
                return
            case Joined():
                self._ranks.setdefault(agent, set()).add(rank)
                return
            case Left() | Gone():
                self._ranks.get(agent, set()).discard(rank)
        if not isinstance(message, ToHub | Left):
            self._pass_on(rank, message, agent)
        self._received.append((rank, message))

    def _look_for_the_gone(self, now: float) -> None:
        for agent, heard in list(self._heard.items()):
            reason = ""
            if agent not in self._server.ranks:
                reason = _ENDED
            elif now - heard > _SILENT_SECONDS:
                reason = _SILENCE
            if not reason:
                continue
            del self._heard[agent]
            self._server.ranks.pop(agent, None)
            ranks = self._ranks.pop(agent, set())
            if self._has_left and reason == _ENDED:
                continue
            for rank in sorted(ranks):
                self._received.append((rank, Gone(reason)))
                self._pass_on(rank, Gone(reason), agent)

    def _pass_on(self, rank: int, message: Message, from_agent: int = 0) -> None:
        """Pass a message on to all agents but the rank's own, in this round."""
        if isinstance(message, Joined) or (isinstance(message, Left) and rank != 0):
            return
        if isinstance(message, Returned):
            self._returned[message.attempt] += 1
            if self._returned[message.attempt] > MOST_ENDED:  # at the end of a job all ranks do, and some are enough
                return
        text = text_of(packed(rank, message))
        if isinstance(message, Failed | Gone):
            self._told.append(text)
        self._to_send.append((from_agent, text))

    def _send(self) -> None:
        """Send each agent all messages that wait for it at once."""
        messages, self._to_send = self._to_send, []
        for agent in self._heard.keys() & self._server.ranks.keys() if messages else ():
            self._server.send(agent, *(text for source, text in messages if source != agent), within=_SEND_SECONDS)
