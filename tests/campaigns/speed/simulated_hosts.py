"""For ``tests.campaigns.speed.hub``: the hub in a process of its own, and the agents of many hosts as sockets of one process."""

from __future__ import annotations

import multiprocessing
import queue
import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import psutil

from runner.guard.link.link import Address, Link
from runner.guard.link.messages import Alive, Failed, HostName, Joined, Left, Message, Returned, packed
from runner.guard.process.events import Events, readable
from runner.guard.report.failure import Failure
from runner.rendezvous.transport.endpoint import allow_open_files, port_of
from runner.rendezvous.transport.protocol import ANSWER, Handshake, Stream, greeting

KEY = bytes(32)
_BEAT = 5.0  # seconds between two signs of life, as runner.guard.link.link.py has it
_FAILED = Failed(
    attempt=0,
    again=False,
    failure=Failure(
        rank=1, host="node1", exit_code=1, what="ValueError: x", step=9, time=0, attempt=0, traceback=2000 * "t"
    ),
)


@contextmanager
def process(target: Any, *arguments: object) -> Iterator[Connection]:
    """A process that gets a connection to this one, and these arguments; it ends when the connection is closed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        child.join(10)
        child.kill()


def be_hub(asked: Connection, ranks: int) -> None:
    """Be the agent of rank 0's host. It answers ("until", kind, count) with the time at which rank 0's guard had so many messages of a
    kind, and ("used",) with its processor seconds and its memory in bytes."""
    allow_open_files()
    link, events = Link(), Events()
    link.listen()
    assert link.listener is not None
    address = Address(host="127.0.0.1", port=port_of(link.listener), key=KEY.hex(), rank=0, size=ranks)
    inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()

    def deliver(told: Sequence[tuple[int, Message]]) -> None:
        for one in told:
            inbox.put(one)
        if told:
            events.wake()

    link.join(address, deliver)
    counts: Counter[str] = Counter()
    wanted: tuple[str, int] | None = None
    asked.send(address.port)
    while True:
        if asked.poll():
            try:
                command, *what = asked.recv()
            except EOFError:
                return
            if command == "until":
                wanted = what[0], what[1]
            else:
                usage = psutil.Process().memory_info().rss
                asked.send((time.process_time(), usage))
        events.has_messages()
        while not inbox.empty():
            _, message = inbox.get()
            counts[type(message).__name__] += 1
        if wanted and counts[wanted[0]] >= wanted[1]:
            asked.send(time.monotonic())
            wanted = None
        events.wait(1.0, asked.fileno())


class Agent:
    """A connection to the hub, from its first byte on."""

    def __init__(self, port: int, ranks: range) -> None:
        self.ranks = ranks
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.is_joined = self.knows = self.is_gone = False
        self.beats_at = 0.0
        self._greeting = b""
        self._sent = Stream(b"")
        # A few addresses of this host, as one has too few ports.
        self.socket.connect_ex((f"127.0.0.{1 + ranks[0] % 16}", port))

    def prove(self) -> bool:
        """Continue the handshake. Returns whether its first part is done, so that the hub's answer is to be read."""
        if not self._greeting:
            self.socket.setblocking(True)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greeting = greeting()
            self.socket.sendall(self._greeting)
            return True
        answer = self.socket.recv(ANSWER, socket.MSG_WAITALL)
        handshake = Handshake(KEY, self._greeting, answer)
        self._sent, _ = handshake.streams(self.ranks[0])
        self.socket.sendall(handshake.proof(self.ranks[0]))
        self.is_joined = True
        return False

    def tell(self, messages: Iterable[Message], each: int = 1) -> None:
        """Send messages, ``each`` of one rank after the other."""
        text = b"".join(
            self._sent.pack(packed(self.ranks[number // each], message)) for number, message in enumerate(messages)
        )
        self.socket.sendall(text)

    def read(self) -> bool:
        """Take what has arrived. Returns False at the end of the connection."""
        found = self.socket.recv(1 << 16)
        self.knows = self.knows or b'"Failed"' in found
        return bool(found)


class Agents:
    """Those of some hosts, in one process."""

    def __init__(self, port: int, hosts: range, per_host: int) -> None:
        self._port, self._hosts, self._per_host = port, hosts, per_host
        self._selector = selectors.DefaultSelector()
        self.all: list[Agent] = []

    def join(self) -> None:
        for host in self._hosts:
            agent = Agent(self._port, range(host * self._per_host, (host + 1) * self._per_host))
            self.all.append(agent)
            self._selector.register(agent.socket, selectors.EVENT_WRITE, agent)
        # First all proofs, which the hub does not wait for long: these agents share two cores or so.
        while not all(agent.is_joined for agent in self.all):
            self.look()
        for agent in self.all:
            agent.tell(
                [message for _ in agent.ranks for message in (Joined(), HostName(f"node{agent.ranks[0]}"))], each=2
            )

    def know(self, tells: bool) -> None:
        """Wait until all know of a failure; the first may tell it."""
        if tells:
            self.all[0].tell([_FAILED])
            self.all[0].knows = True
        while not all(agent.knows for agent in self.all):
            self.look()

    def live(self, seconds: float) -> None:
        """Send signs of life."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            self.look(0.01)

    def leave(self) -> None:
        for agent in self.all:
            agent.tell([message for _ in agent.ranks for message in (Returned(0, ""), Left())], each=2)
            agent.socket.shutdown(socket.SHUT_WR)
            agent.is_gone = True

    def look(self, within: float = 0.05) -> None:
        """Take what has arrived, and send the signs of life that are due."""
        for key, _ in self._selector.select(within):
            agent = key.data
            if agent.is_joined:
                if not agent.read():
                    assert agent.is_gone, "the hub has closed a connection"
                    self._selector.unregister(agent.socket)
            elif agent.prove():
                self._selector.modify(agent.socket, selectors.EVENT_READ, agent)
        now = time.monotonic()
        for agent in self.all:
            if agent.is_joined and not agent.is_gone and now > agent.beats_at:
                if agent.beats_at:
                    agent.tell([Alive()])
                agent.beats_at = now + _BEAT


def be_agents(asked: Connection, port: int, hosts: range, per_host: int) -> None:
    """Be the agents of these hosts. Does what it is asked for, the name and arguments of a method, and answers with the time of its end."""
    allow_open_files()
    agents = Agents(port, hosts, per_host)
    while True:
        while not readable([asked.fileno()], 0.0 if agents.all else 1.0):
            agents.look()
        try:
            name, *what = asked.recv()
        except EOFError:
            return
        getattr(agents, name)(*what)
        asked.send(time.monotonic())


def open_files() -> int:
    """How many descriptors a process may have at most."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
