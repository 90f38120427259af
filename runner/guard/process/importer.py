"""The process of a host that imports torch once, and of which the workers of the host's ranks are forked.

It has one thread, and neither CUDA nor MPI nor OpenMP's pool, so that a fork is safe. It outlives its workers, takes their exit
codes, and adopts what they leave behind. The agent asks it by a socket; the kernel ends it with the agent, and workers with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn, Protocol

from runner.base.environment import replace_variables
from runner.guard.hang.stacks import let_show, new_file
from runner.guard.process.events import readable
from runner.guard.process.forks import adopt_orphans, die_with, name_process, outside_of_libraries
from runner.guard.process.identity import is_open
from runner.guard.process.lifeline import Lifeline
from runner.guard.process.proxy import NOTICE_SIGNALS, STOP_SIGNALS
from runner.guard.process.wire import receive, send
from runner.guard.report.board import Board

_MOST_SAID = 1 << 16  # bytes


class Work(Protocol):
    """The importer's work: what it imports, and what its workers do."""

    def prepare(self) -> str:
        """Called in the importer, once. Returns why workers must not be forked of it after that, "" if they may."""

    def work(self, lifeline: Lifeline) -> NoReturn:
        """Called in a worker."""

    def import_per_rank(self, why: str) -> None:
        """The next importer imports nothing ahead."""


class Importer:
    """The importer as the agent sees it."""

    def __init__(self, connection: socket.socket, process: int) -> None:
        self.connection, self.process = connection, process
        self.is_ready = False  # it has imported; before, it takes no requests
        self.unanswered = 0  # requests

    def start(self, worker: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Have it fork a worker, once it has imported what it is to."""
        # Where it has ended its connection tells so, too.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self.connection, worker, descriptors)


def fork_importer(make: Callable[[], Work], work: Work, stacks: Any, name: str, keep: Collection[int]) -> Importer:
    """Fork it.

    Args:
        make: makes another one, of the command line of a later launch, in a worker of that.
        stacks: the file by which it shows its stack.
        name: of the workers' processes.
        keep: descriptors that are not the agent's own, but were there before it.

    Raises:
        OSError: there is no room for one more process.
    """
    ours, theirs = socket.socketpair()
    agent = os.getpid()
    with outside_of_libraries():
        process = os.fork()
    if process:
        theirs.close()
        return Importer(ours, process)
    code = 1
    try:
        ours.detach()
        _close_others({*keep, theirs.fileno(), stacks.fileno()})
        threading.stack_size(0)  # the agent's threads have small ones
        die_with(agent)
        let_show(stacks)
        argv = sys.argv
        if (worker := _serve(work, theirs, name)) is not None:
            (work if sys.argv == argv else make()).work(worker)
        code = 0
    except BaseException:  # a defect of the runner's; a worker has its standard error
        traceback.print_exc()
    finally:  # whatever it raises: this process must not go on as an agent
        os._exit(code)


def _serve(work: Work, connection: socket.socket, name: str) -> Lifeline | None:
    """Fork workers, of this name, until the agent ends. Returns in each of them its lifeline."""
    adopt_orphans()
    name_process("runner-importer")
    # Workers begin with the signals' default actions, and none comes before they are ready for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, *NOTICE_SIGNALS))
    for number in (*STOP_SIGNALS, *NOTICE_SIGNALS):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with _said() as said:
        reason = work.prepare()
    send(connection, {"ready": not reason, "why": reason, "said": said.getvalue()})
    if reason:
        return None
    while True:
        ready = readable([connection.fileno(), woken], None)
        if woken in ready:
            os.read(woken, 4096)
            _reap(connection)
        if connection.fileno() in ready:
            asked = receive(connection)
            if asked is None:
                return None
            worker, descriptors = asked
            if "close" in worker:
                for number in worker["close"]:
                    with contextlib.suppress(OSError):  # a module of --preload has closed it
                        os.close(number)
                continue
            try:
                own = os.getpid()
                process = os.fork()
            except OSError as error:  # no room for one more
                send(connection, {"worker": worker["worker"], "error": error.strerror})
            else:
                if process == 0:
                    name_process(name)
                    return _become(worker, descriptors, [woken, wake, connection.detach()], own)
                send(connection, {"worker": worker["worker"], "process": process})
            for descriptor in descriptors:
                os.close(descriptor)


@contextlib.contextmanager
def _said() -> Iterator[io.BytesIO]:
    """Collect what is printed in the block, such as warnings of an import."""
    content = io.BytesIO()
    with new_file() as file:
        before = [os.dup(stream) for stream in (1, 2)]
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            yield content
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        finally:
            for number, old in zip((1, 2), before, strict=True):
                os.dup2(old, number)
                os.close(old)
            content.write(os.pread(file.fileno(), _MOST_SAID, 0))


def _reap(connection: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            send(connection, {"process": ended[0], "status": ended[1]})


def _become(worker: dict[str, Any], descriptors: list[int], close: Sequence[int], importer: int) -> Lifeline:
    """Make this process, which was just forked, the worker of a rank: what its launcher has given to the rank's proxy, it has."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in worker["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in close:
        os.close(descriptor)
    pipe, asked, board, stacks, answers = _place(descriptors, worker["numbers"])
    if worker["leads"]:
        os.setpgid(0, 0)
    else:
        os.setpgid(0, worker["group"])  # a terminal's input goes to its foreground group only
    die_with(importer)
    _open_streams(worker["numbers"])
    sys.argv, sys.orig_argv = worker["argv"], worker["orig_argv"]
    replace_variables(worker["environment"])
    time.tzset()
    tempfile.tempdir = None  # it depends on the variables
    os.umask(worker["umask"])
    if worker["affinity"]:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, worker["affinity"])
    let_show(os.fdopen(stacks, "w+b"))
    lifeline = Lifeline(pipe, Board(board), asked=asked, answers=os.fdopen(answers, "w+b"), origin=worker["origin"])
    lifeline.board.process, lifeline.board.began = os.getpid(), worker["began"]
    lifeline.port, lifeline.attempt, lifeline.found = worker["port"], worker["attempt"], worker["found"]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, *NOTICE_SIGNALS))
    return lifeline


def _open_streams(numbers: Sequence[int]) -> None:
    """Python's own streams: they are those of the elected rank, which may have had others open."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if number not in numbers:
            setattr(sys, name, None)
        elif getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def open_files() -> list[int]:
    """The descriptors of this process."""
    # Without that of the folder, which is closed then.
    return [number for number in map(int, os.listdir("/proc/self/fd")) if is_open(number)]


def _close_others(keep: set[int]) -> None:
    """Close what only the agent may hold."""
    for number in {*open_files()} - keep - {0, 1, 2}:
        os.close(number)


def _place(descriptors: list[int], numbers: Sequence[int]) -> list[int]:
    """Give descriptors their numbers, those of the launcher first. Returns the numbers of the rest."""
    # First all out of the way: one may have the number that another is to get.
    above = max(2, *numbers, *descriptors) + 1
    away = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, above) for number in descriptors]
    for number in descriptors:
        os.close(number)
    for number in (0, 1, 2):
        if number not in numbers:
            with contextlib.suppress(OSError):
                os.close(number)
    for number, wanted in zip(away, numbers, strict=False):
        os.dup2(number, wanted)
        os.close(number)
    return away[len(numbers) :]
