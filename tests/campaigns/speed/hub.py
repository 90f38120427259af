"""What the hub of the agents' link costs: connections, memory, processor time, and how soon all hosts know of a failure.

    python -m tests.campaigns.speed.hub [--hosts 10 100 1000 10000] [--ranks-per-host 8] [--seconds 10] [--write]

The hub is the runner's own, in a process of its own. The agents are sockets of a few other processes that speak its protocol: all
connect at once, each sends what the guards of its ranks would, and a sign of life every five seconds. All of them share this
machine's cores with the hub. ``--write``: into docs/results/hub.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from multiprocessing.connection import Connection
from typing import Any

import psutil

from runner.guard.link.link import Address, Link
from runner.guard.link.messages import Alive, Failed, HostName, Joined, Left, Message, Returned, packed
from runner.guard.report.failure import Failure
from runner.rendezvous.transport.endpoint import allow_open_files, port_of
from runner.rendezvous.transport.protocol import ANSWER, Handshake, Stream, greeting
from tests.pages import RESULTS, table

KEY = bytes(32)
HOSTS_PER_PROCESS = 5000
BEAT = 5.0  # seconds between two signs of life, as in runner/guard/link/link.py
TITLES = (
    *("hosts", "ranks", "connections", "memory (MiB)", "all have joined", "all know of a failure", "all have left"),
    "of a core: signs of life",
)
FAILURE = Failure(
    rank=1, host="node1", exit_code=1, what="ValueError: x", step=9, time=0, attempt=0, traceback=2000 * "t"
)
FAILED = Failed(attempt=0, again=False, failure=FAILURE)


class Agent:
    """A host's connection to the hub."""

    def __init__(self, port: int, ranks: range) -> None:
        self.ranks, self.own, self.sent = ranks, b"", Stream(b"")
        self.has_joined = self.knows = self.is_gone = False
        self.beats_at = 0.0
        self.socket = socket.socket()
        self.socket.setblocking(False)
        # A few addresses of this host, because one has too few ports.
        self.socket.connect_ex((f"127.0.0.{1 + ranks[0] % 16}", port))

    def greet(self) -> None:
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.own = greeting()
        self.socket.sendall(self.own)

    def prove(self) -> None:
        handshake = Handshake(KEY, self.own, self.socket.recv(ANSWER, socket.MSG_WAITALL))
        self.sent, _ = handshake.streams(self.ranks[0])
        self.socket.sendall(handshake.proof(self.ranks[0]))
        self.has_joined = True

    def tell(self, *messages: Message) -> None:
        """Send messages of each rank."""
        self.socket.sendall(b"".join(self.sent.pack(packed(rank, one)) for rank in self.ranks for one in messages))

    def read(self) -> bool:
        """Take what has arrived. Returns False at the end of the connection."""
        found = self.socket.recv(1 << 16)
        self.knows = self.knows or b'"Failed"' in found
        return bool(found)

    def beat(self, now: float) -> None:
        """Send a sign of life if one is due."""
        if self.has_joined and not self.is_gone and now > self.beats_at:
            if self.beats_at:
                self.socket.sendall(self.sent.pack(packed(self.ranks[0], Alive())))
            self.beats_at = now + BEAT


class Agents:
    """The agents of some hosts, in one process. Its methods, but for ``look``, are the stages of a job."""

    def __init__(self, port: int, hosts: range, per_host: int) -> None:
        self._port, self._ranks = port, [range(host * per_host, (host + 1) * per_host) for host in hosts]
        self._selector = selectors.DefaultSelector()
        self.all: list[Agent] = []

    def join(self) -> None:
        self.all = [Agent(self._port, ranks) for ranks in self._ranks]
        for agent in self.all:
            self._selector.register(agent.socket, selectors.EVENT_WRITE, agent)
        # First all proofs, for which the hub does not wait long: these agents share two cores or so.
        while not all(agent.has_joined for agent in self.all):
            self.look()
        for agent in self.all:
            agent.tell(Joined(), HostName(f"node{agent.ranks[0]}"))

    def fail(self) -> None:
        """The agent of the second host tells of a failure; wait until all know of it."""
        if self._ranks[0][0] == len(self._ranks[0]):
            self.all[0].tell(FAILED)
            self.all[0].knows = True
        while not all(agent.knows for agent in self.all):
            self.look()

    def leave(self) -> None:
        for agent in self.all:
            agent.tell(Returned(0, ""), Left())
            agent.socket.shutdown(socket.SHUT_WR)
            agent.is_gone = True

    def look(self) -> None:
        """Take what has arrived, and send the signs of life that are due."""
        for key, _ in self._selector.select(0.05 if self.all else 1.0):
            agent = key.data
            if agent.has_joined:
                if not agent.read():
                    assert agent.is_gone, "the hub has closed a connection"
                    self._selector.unregister(agent.socket)
            elif agent.own:
                agent.prove()
            else:
                agent.greet()
                self._selector.modify(agent.socket, selectors.EVENT_READ, agent)
        for agent in self.all:
            agent.beat(time.monotonic())


def be_agents(asked: Connection, port: int, hosts: range, per_host: int) -> None:
    """Go through the stages that are asked for by name, and answer with the time of each one's end."""
    allow_open_files()
    agents = Agents(port, hosts, per_host)
    with suppress(EOFError):
        while True:
            while not asked.poll(0.0 if agents.all else 1.0):
                agents.look()
            getattr(agents, asked.recv())()
            asked.send(time.monotonic())


def be_hub(asked: Connection, ranks: int) -> None:
    """Be the agent of rank 0's host.

    It answers (kind, count), once rank 0's guard has had so many messages of a kind, with the time, its processor seconds and its
    memory in bytes.
    """
    allow_open_files()
    link, heard, changed = Link(), Counter[str](), threading.Condition()
    link.listen()
    assert link.listener is not None
    address = Address(host="127.0.0.1", port=port_of(link.listener), key=KEY.hex(), rank=0, size=ranks)

    def deliver(told: Sequence[tuple[int, Message]]) -> None:
        with changed:
            heard.update(type(message).__name__ for _, message in told)
            changed.notify()

    link.join(address, deliver)
    asked.send(address.port)
    with suppress(EOFError):
        while True:
            kind, count = asked.recv()
            with changed:
                while heard[kind] < count:
                    changed.wait()
            asked.send((time.monotonic(), time.process_time(), psutil.Process().memory_info().rss))


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


def measure(hosts: int, per_host: int, seconds: float) -> tuple[object, ...]:
    """Measure a row of the table."""
    ranks, others = hosts * per_host, (hosts - 1) * per_host
    with ExitStack() as stack:
        hub = stack.enter_context(process(be_hub, ranks))
        port = hub.recv()
        parts = [range(first, min(first + HOSTS_PER_PROCESS, hosts)) for first in range(1, hosts, HOSTS_PER_PROCESS)]
        groups = [stack.enter_context(process(be_agents, port, part, per_host)) for part in parts]

        def pass_through(stage: str, kind: str = "", count: int = 0) -> str:
            """Return the seconds until all agents, and the hub, are done, and the hub's processor seconds."""
            print(f"{stage} …", file=sys.stderr, flush=True)
            _, before, _ = asked(hub)
            begin = time.monotonic()
            for group in groups:
                group.send(stage)
            end = max(group.recv() for group in groups)
            heard, after, _ = asked(hub, kind, count)
            return f"{(heard if kind else end) - begin:.2f} s ({after - before:.2f})"

        joined = pass_through("join", "HostName", others)
        (_, before, _), begin = asked(hub), time.monotonic()
        time.sleep(seconds)
        _, after, memory = asked(hub)
        share = (after - before) / (time.monotonic() - begin)
        knew = pass_through("fail")
        left = pass_through("leave", "Left", others)
    return hosts, ranks, hosts - 1, f"{memory / 2**20:.0f}", joined, knew, left, f"{100 * share:.1f} %"


def asked(hub: Connection, kind: str = "", count: int = 0) -> tuple[float, float, int]:
    hub.send((kind, count))
    now, processor, memory = hub.recv()
    return now, processor, memory


def page(rows: list[tuple[object, ...]]) -> str:
    """docs/results/hub.md."""
    written = (
        f"Written by `python -m tests.campaigns.speed.hub --write` on {date.today()}, on {len(os.sched_getaffinity(0))} cores (load "
        f"{os.getloadavg()[0]:.0f}), which the hub shares with the simulated agents and whatever else runs. In brackets: processor seconds of the hub."
    )
    return "\n".join(["# The hub of the agents' link", "", written, "", *table(TITLES, rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--ranks-per-host", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10, help="of signs of life")
    parser.add_argument("--write", action="store_true", help="into docs/results/hub.md")
    given = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if max(given.hosts) + 100 > files:
        parser.error(f"a process may open {files} files here (ulimit -Hn), and the hub needs one per host")
    rows = []
    for hosts in given.hosts:
        rows.append(measure(hosts, given.ranks_per_host, given.seconds))
        lines = [f"{title:>25}  {cell}" for title, cell in zip(TITLES, rows[-1], strict=True)]
        print(*lines, sep="\n", end="\n\n", flush=True)
    if given.write:
        (RESULTS / "hub.md").write_text(page(rows))


if __name__ == "__main__":
    main()
