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
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from runner.base.environment import replace_variables
from runner.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_REQUEUE, EXIT_USAGE
from runner.guard.link.link import Link
from runner.guard.process.events import readable
from runner.guard.process.forks import adopt_orphans
from runner.guard.process.importer import Work, open_files
from runner.guard.process.proxy import EVENT, NOTICE_SIGNALS, STOP_SIGNALS
from runner.guard.process.wire import accept_own, receive, send
from runner.guard.process.workers import Workers
from runner.guard.rank import Rank
from runner.guard.settings import Origin, Watched, Words, origin_of
from runner.rendezvous.transport.endpoint import allow_open_files

_HAND_OVER_SECONDS = 5.0  # seconds for what a proxy has begun to send
_ORPHAN_SECONDS = 1.0  # seconds between two looks for orphans
_STACK_BYTES = 1 << 19  # bytes of a thread's stack
_KEEP_SECONDS = 4.0  # after a failed attempt of `supervise`, in which its next one has to come
_FINAL = {EXIT_OK, EXIT_USAGE, EXIT_REQUEUE}  # exit codes after which `supervise` does not start the job again
_FILES_PER_RANK = 24  # descriptors that a rank takes here, at most


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

    def end(self) -> None:
        """Called once all other processes of the launch have ended."""


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
        for number in (*STOP_SIGNALS, *NOTICE_SIGNALS):  # they are for ranks
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, *NOTICE_SIGNALS))
        adopt_orphans()
        allow_open_files()
        agent = Agent(listener, first, make)
        agent.run()
        while kept and agent.is_worth_keeping and agent.await_launch(kept):
            agent.run()
        agent.end()
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
        # Half of them: rank 0's agent has one for each host, too.
        self._most = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 // _FILES_PER_RANK)
        self._link = Link()
        self._woken, self._wake = os.pipe()
        self._workers = Workers(make, wake=lambda: os.write(self._wake, b"f"), say=self.print)
        self._left: queue.SimpleQueue[Rank] = queue.SimpleQueue()  # ranks that have ended
        threading.stack_size(_STACK_BYTES)
        self._setup = make()
        self._workers.serve(self._setup, self._inherited)
        # Only its ranks, of which each has descriptors of its own, hold the launcher's pipes.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.close(nothing)
        if listener is not None:
            listener.setblocking(False)
        self._welcome(first)
        if not self._setup.is_refused:
            self._workers.start_importer()

    def run(self) -> None:
        """Until no proxy is left."""
        while self._accept() or self._ranks:
            sources = [self._woken, *self._proxies]
            sources += [self._listener.fileno()] if self._listener else []
            told = self._workers.importer.connection.fileno() if self._workers.importer else None
            sources += [] if told is None else [told]
            ready = set(readable(sources, _ORPHAN_SECONDS if self._workers.has_lost_importer else None))
            self._reap()
            if self._woken in ready:
                os.read(self._woken, 4096)
            if told in ready:
                self._workers.hear()
            for number in ready & self._proxies.keys():
                self._hear(number, self._proxies[number])
            self._workers.ask()
            while not self._left.empty():
                rank = self._left.get()
                self._ranks.remove(rank)
                self._codes.add(rank.code)
                self._proxies.pop(rank.connection.fileno(), None)
                rank.connection.close()

    @property
    def is_worth_keeping(self) -> bool:
        """Whether `supervise` may start the job again, which can take over what was imported."""
        importer = self._workers.importer
        has_imported = self._setup.shares and importer is not None and importer.is_ready
        return has_imported and bool(self._codes - _FINAL)

    def await_launch(self, name: bytes) -> bool:
        """Wait for the next launch by this name, and become its agent. Returns whether it has come."""
        if self._listener is not None:
            self._listener.close()
        inherited, self._inherited = self._inherited - {0, 1, 2}, self._inherited & {0, 1, 2}
        launch = _wait_for_launch(name, self._workers, inherited)
        if launch is None:
            return False
        self._proxies[launch.connection.fileno()] = _Proxy(launch.connection)
        self._listener = launch.listener
        self._link, self._codes, self._setup = Link(), set(), self._make()
        self._workers.serve(self._setup, self._inherited)
        if not self._setup.shares:  # the program has changed
            self._workers.end_importer()  # the first worker has another made
        return True

    def end(self) -> None:
        """End the importer, and what the launch has left."""
        self._workers.end_importer()
        self._setup.end()

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
        for event in EVENT.iter_unpack(events):
            proxy.rank.events.put(*event)

    def _take_over(self, number: int, proxy: _Proxy) -> None:
        """Begin to watch the rank of a proxy that hands over."""
        handed = None
        proxy.connection.settimeout(_HAND_OVER_SECONDS)
        with contextlib.suppress(OSError):
            handed = receive(proxy.connection)
        proxy.connection.settimeout(None)
        if handed is None:
            self._proxies.pop(number).connection.close()
            return
        try:
            origin = origin_of(*handed)
            proxy.rank = Rank(
                origin, proxy.connection, self._setup.rank, link=self._link, workers=self._workers, leave=self._leave
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

    def _reap(self) -> None:
        """Take the exit codes of what an importer has left. A library's own child, in this process's group, is the library's."""
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while self._workers.has_lost_importer and (found := os.waitid(os.P_ALL, 0, ended)) is not None:
                is_importer = found.si_pid == self._workers.shown_importer()[0]
                if is_importer or os.getpgid(found.si_pid) == os.getpgrp():
                    return
                os.waitpid(found.si_pid, 0)


class _NextLaunch(NamedTuple):
    """The connection to its elected proxy, and the socket to which the others connect."""

    connection: socket.socket
    listener: socket.socket


def _wait_for_launch(name: bytes, workers: Workers, inherited: set[int]) -> _NextLaunch | None:
    """Wait for a launch by this name, and take its command line and variables. None: it has not come.

    Args:
        inherited: what the last launch has opened for its elected rank.
    """
    importer, end = workers.importer, time.monotonic() + _KEEP_SECONDS
    assert importer is not None  # else the agent is not worth keeping
    with socket.socket(socket.AF_UNIX) as kept, contextlib.suppress(OSError):  # another one has the name
        for number in inherited:  # Hydra waits until no process has its pipes
            os.close(number)
        importer.start({"close": list(inherited)}, ())
        kept.bind(name)
        kept.listen()
        kept.setblocking(False)
        told = importer.connection.fileno()
        while workers.importer and (left := end - time.monotonic()) > 0:
            ready = readable([kept.fileno(), told], left)
            if told in ready:
                workers.hear()
            for connection in accept_own(kept) if kept.fileno() in ready else ():
                if (launch := _take(connection)) is not None:
                    return launch
    return None


def _take(connection: socket.socket) -> _NextLaunch | None:
    told = None
    connection.settimeout(_HAND_OVER_SECONDS)
    with contextlib.suppress(OSError):
        send(connection, {"agent": os.getpid()})
        told = receive(connection)
    if told is None:
        connection.close()
        return None
    connection.settimeout(None)
    message, (number,) = told
    listener = socket.socket(fileno=number)
    listener.setblocking(False)
    sys.argv, sys.orig_argv = message["argv"], message["orig_argv"]
    replace_variables(message["environment"])
    return _NextLaunch(connection, listener)
