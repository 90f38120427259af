"""The runner's agent on a host: the parent of nobody's rank, which watches all ranks of a launch there, and cleans up after them.

    launcher ─► proxy 0 … n ─elect─► agent ─fork─► importer ─fork─► worker 0 … n ─► target

It is forked by the proxy that was elected. Its main thread takes proxies and what importer and proxies tell; each rank has a thread
that watches its worker (watch.py). It ends when no rank is left; but after a failure of a launch by `supervise` it waits for the
next one, which is then that of a new agent, in the same process and with the same importer.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO, Any, NoReturn, Protocol

from runner.base.errors import EXIT_FAILURE
from runner.guard.hang.stacks import new_file
from runner.guard.link.link import Link
from runner.guard.process.events import name_of
from runner.guard.process.group import adopt_orphans, name_process
from runner.guard.process.importer import Importer, Work, fork_importer, open_files
from runner.guard.process.next_launch import may_start_again, wait_for_launch
from runner.guard.process.origin import Origin, origin_of
from runner.guard.process.proxy import ENDS, EVENT, TELLS
from runner.guard.process.wire import accept_own, receive, send
from runner.guard.process.workers import Workers
from runner.guard.rank import Rank
from runner.guard.settings import Watched, Words
from runner.rendezvous.transport.endpoint import allow_open_files

_HANDING_OVER = 5.0  # seconds for what a proxy has begun to send
_ROUND = 1.0  # seconds between two looks for orphans
_STACK = 1 << 19  # bytes of a thread's stack
_FILES = 24  # descriptors that a rank takes here, at most


class Setup(Work, Protocol):
    """The agent's task; made in the agent, once."""

    @property
    def is_refused(self) -> bool:
        """Whether no process can become a rank."""

    @property
    def shares(self) -> bool:
        """Whether what the importer imports is shared."""

    def rank(self, origin: Origin) -> tuple[Words, Watched]:
        """Return the texts that a rank's guard prints, and what it watches.

        Raises:
            Refused: the process cannot become a rank.
        """

    def import_per_rank(self, why: str) -> None:
        """The next importer imports nothing ahead."""


def serve(listener: socket.socket | None, first: socket.socket, kept: bytes, make: Callable[[], Setup]) -> NoReturn:
    """Be the agent. Called in the process that was just forked.

    Args:
        kept: the name by which a next launch of `supervise` finds this process; empty: none is to.
        make: makes what the agent is for, of this process's command line.
    """
    code, agent = EXIT_FAILURE, None
    try:
        if os.isatty(0):  # a terminal's signals stop and end the agent with its ranks
            kept = b""
        else:
            os.setpgid(0, 0)
        _close_pmi()
        for number in (*ENDS, *TELLS):  # they are for ranks
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDS, *TELLS))
        adopt_orphans()
        allow_open_files()
        agent = Agent(listener, first, make)
        agent.run()
        while kept and agent.is_worth_keeping and agent.await_launch(kept):
            agent.run()
        code = 0
    except BaseException:  # a defect of the runner's
        if agent is None:  # it has the elected rank's output
            traceback.print_exc()
        else:
            agent.print(traceback.format_exc().rstrip())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _close_pmi() -> None:
    """The elected rank's connection to Hydra is open in this process as in its proxy: its end would not be seen."""
    number = os.environ.get("PMI_FD", "")
    if number.isdecimal() and int(number) > 2:
        with contextlib.suppress(OSError):
            os.close(int(number))


class _Proxy:
    """A process that a launcher has started."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: Rank | None = None  # once it has handed over
        self.rest = b""  # of an event


class Agent:
    """The agent of one host."""

    def __init__(self, listener: socket.socket | None, first: socket.socket, make: Callable[[], Setup]) -> None:
        # What the launcher or a shell has opened for the elected rank: a worker alone has it, too.
        self._inherited = {*open_files()} - {first.fileno(), *([listener.fileno()] if listener else [])}
        self._listener = listener
        self._make = make
        self._codes = set[int]()  # of ranks that have ended
        self._proxies: dict[int, _Proxy] = {}  # by the descriptor of the connection
        self._ranks: set[Rank] = set()  # those that have not ended
        self._importer: Importer | None = None
        self._stacks = new_file()  # of the importer
        self._adopts = False  # an importer was killed, so that this process has its children
        # Half of them: rank 0's agent has one for each host, too.
        self._most = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 // _FILES)
        self._link = Link()
        self._name = name_process("runner-agent")  # of the process that the launcher has started
        self._woken, self._wake = os.pipe()
        self._workers = Workers(lambda: os.write(self._wake, b"f"))
        self._left: queue.SimpleQueue[Rank] = queue.SimpleQueue()  # ranks that have ended
        threading.stack_size(_STACK)
        self._setup = make()
        # Only its ranks, of which each has descriptors of its own, hold the launcher's pipes.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.close(nothing)
        if listener is not None:
            listener.setblocking(False)
        self._welcome(first)
        if not self._setup.is_refused:
            self._renew_importer()

    def run(self) -> None:
        """Until no proxy is left."""
        while self._accept() or self._ranks:
            poll = select.poll()
            sources = [self._woken, *self._proxies]
            sources += [self._listener.fileno()] if self._listener else []
            sources += [self._importer.connection.fileno()] if self._importer else []
            for source in sources:
                poll.register(source, select.POLLIN)
            ready = {number for number, _ in poll.poll(1000 * _ROUND if self._adopts else None)}
            self._reap()
            if self._woken in ready:
                os.read(self._woken, 4096)
            if self._importer and self._importer.connection.fileno() in ready:
                self._hear_importer(self._importer)
            for number in ready & self._proxies.keys():
                self._hear(number, self._proxies[number])
            if self._workers.are_asked and self._importer is None:  # the last one was killed
                self._renew_importer()
            if self._importer is not None and self._importer.is_ready:
                self._workers.ask(self._importer)
            while not self._left.empty():
                rank = self._left.get()
                self._ranks.remove(rank)
                self._codes.add(rank.code)
                self._proxies.pop(rank.connection.fileno(), None)
                rank.connection.close()

    @property
    def is_worth_keeping(self) -> bool:
        """Whether `supervise` may start the job again, which can take over what was imported."""
        has_imported = self._setup.shares and self._importer is not None and self._importer.is_ready
        return has_imported and may_start_again(self._codes)

    def await_launch(self, name: bytes) -> bool:
        """Wait for the next launch by this name, and become its agent. Returns whether it has come."""
        assert self._importer is not None  # else it is not worth keeping
        if self._listener is not None:
            self._listener.close()
        inherited, self._inherited = self._inherited - {0, 1, 2}, self._inherited & {0, 1, 2}
        launch = wait_for_launch(name, self._importer, inherited, self._hear_importer)
        if launch is None:
            return False
        self._proxies[launch.connection.fileno()] = _Proxy(launch.connection)
        self._listener = launch.listener
        self._link, self._codes, self._setup = Link(), set(), self._make()
        if not self._setup.shares and self._importer is not None:  # the program has changed
            os.kill(self._importer.process, signal.SIGKILL)
            self._lose_importer(self._importer)  # the first worker has another made
        return True

    def print(self, text: str) -> None:
        """Print with a rank's output, as this process has none."""
        for rank in list(self._ranks)[:1]:
            rank.print(text)

    def _accept(self) -> bool:
        """Take the proxies that have come. Returns whether any is there."""
        for connection in accept_own(self._listener) if self._listener is not None else ():
            self._welcome(connection)
        return bool(self._proxies)

    def _welcome(self, connection: socket.socket) -> None:
        is_full = len(self._proxies) >= self._most
        with contextlib.suppress(OSError):  # it has gone
            send(connection, {"full": self._most} if is_full else {"agent": os.getpid()})
            if not is_full:
                self._proxies[connection.fileno()] = _Proxy(connection)
                return
        connection.close()

    def _hear(self, number: int, proxy: _Proxy) -> None:
        """A proxy hands over, or passes a signal on, or was killed."""
        if proxy.rank is None:
            self._take_over(number, proxy)
            return
        try:
            events = proxy.connection.recv(64 * EVENT.size)
        except OSError:
            events = b""
        if not events:
            del self._proxies[number]
            proxy.rank.lose_proxy()
            return
        proxy.rest += events
        whole = len(proxy.rest) // EVENT.size * EVENT.size
        for event in EVENT.iter_unpack(proxy.rest[:whole]):
            proxy.rank.events.put(*event)
        proxy.rest = proxy.rest[whole:]

    def _take_over(self, number: int, proxy: _Proxy) -> None:
        """Begin to watch the rank of a proxy that hands over."""
        handed = None
        proxy.connection.settimeout(_HANDING_OVER)
        with contextlib.suppress(OSError):
            handed = receive(proxy.connection)
        proxy.connection.settimeout(None)
        if handed is None:
            self._proxies.pop(number).connection.close()
            return
        try:
            origin = origin_of(*handed)
            proxy.rank = Rank(
                origin,
                proxy.connection,
                self._setup.rank,
                link=self._link,
                fork=self._workers.fork,
                importer=self._shown_importer,
                leave=self._leave,
                workers=self._workers.processes,
            )
        except (OSError, RuntimeError, ValueError) as error:  # no room for its files, or for one more thread
            for descriptor in handed[1]:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                send(proxy.connection, {"exit": EXIT_FAILURE, "why": f"this rank cannot be started: {error}"})
            self._proxies.pop(number).connection.close()
            return
        self._ranks.add(proxy.rank)

    def _leave(self, rank: Rank) -> None:
        """A rank has ended. Called in its thread."""
        self._left.put(rank)
        os.write(self._wake, b"l")

    def _shown_importer(self) -> tuple[int, IO[Any]]:
        importer = self._importer
        return (importer.process if importer else 0), self._stacks

    def _renew_importer(self) -> None:
        try:
            self._importer = fork_importer(self._make, self._setup, self._stacks, self._name, self._inherited)
        except OSError as error:  # no room for one more process
            why = f"the process that imports for this host's ranks cannot be started: {error.strerror}"
            self._workers.end_all(why, 1 << 8)

    def _hear_importer(self, importer: Importer) -> bool:
        """Take what it tells. Returns whether it is there still."""
        told = None
        with contextlib.suppress(OSError):
            told = receive(importer.connection)
        if told is None:
            self._lose_importer(importer)
            return False
        message, _ = told
        if "ready" in message:
            importer.is_ready = message["ready"]
            if said := message["said"].decode(errors="replace").rstrip():
                self.print(said)  # once, as each rank would print the same
            if not importer.is_ready:
                self._replace_importer(importer, message["why"])
        elif "worker" in message:
            importer.unanswered -= 1
            self._workers.note_start(message)
        else:
            self._workers.note_end(message["process"], message["status"])
        return self._importer is not None

    def _replace_importer(self, importer: Importer, why: str) -> None:
        """Replace an importer whose imports cannot be forked; the next one imports nothing ahead."""
        self._setup.import_per_rank(why)
        importer.connection.close()
        self._importer = None
        os.waitpid(importer.process, 0)  # it ends by itself, and has forked none

    def _lose_importer(self, importer: Importer) -> None:
        """Note the importer's end; the kernel ends its workers with it."""
        importer.connection.close()
        self._importer = None
        _, status = os.waitpid(importer.process, 0)
        self._adopts = True
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by {name_of(-code)}" if code < 0 else f"has ended with code {code}"
        self._workers.end_all(
            f"the process that has imported for this host's ranks {how}, and its ranks with it", status
        )

    def _reap(self) -> None:
        """Take the exit codes of what an importer has left. A library's own child, in this process's group, is the library's."""
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            while self._adopts and (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                is_importer = self._importer is not None and found.si_pid == self._importer.process
                if is_importer or os.getpgid(found.si_pid) == os.getpgrp():
                    return
                os.waitpid(found.si_pid, 0)
