"""The guard's child processes: the worker, and a spare one that has imported torch and waits to take its place."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from runner.base.collector import freeze, paused_collector
from runner.base.errors import EXIT_FAILURE, EXIT_OK
from runner.guard.board import Board
from runner.guard.collectives import Call, answer
from runner.guard.group import Group, die_with
from runner.guard.libraries import outside_of_libraries
from runner.guard.stacks import let_show, new_file
from runner.guard.worker_messages import Fails, WorkerMessage, written
from runner.rendezvous.transport.endpoint import port_of
from runner.versions.torch_private import COMPILER

_TRACEBACK = 8000  # characters that are kept of it, the last ones: a message fits into a pipe
_TRYING = 60.0  # seconds until a spare process is tried again for which there was no room
_IMPORTED = ("torch.distributed", COMPILER)  # ahead; DDP's constructor imports the second


class Lifeline:
    """The worker's end of the pipe to its guard."""

    def __init__(self, pipe: int, board: Board, port: int, *, asked: int, answers: IO[Any]) -> None:
        self._pipe, self._asked, self._answers = pipe, asked, answers
        self.board = board
        self.port = port  # at which rank 0's guard listens for the others, 0 on other ranks
        self.attempt = 0  # how often the ranks were started again
        self.worker = os.getpid()  # a forked child has the lifeline too, but another process id

    def tell(self, message: WorkerMessage) -> None:
        """Tell the guard something."""
        if isinstance(message, Fails):
            message = replace(message, why=message.why[:500], traceback=message.traceback[-_TRACEBACK:])
        with contextlib.suppress(OSError):
            os.write(self._pipe, written(message))

    def answer_with(self, calls: Callable[[], list[Call]]) -> None:
        """Have a thread tell the guard, when it asks, what this rank has called last in each process group."""
        answer(self._asked, self._answers, calls)


@dataclass(frozen=True, kw_only=True)
class Child:
    """A worker, or a spare one, as its guard sees it."""

    process: int
    group: Group
    messages: int  # the pipe from its lifeline
    board: Board
    stacks: IO[Any]
    answers: IO[Any]  # to what the guard asks
    requests: int  # the pipe on which a spare one waits, and a worker is asked

    @property
    def own_ends(self) -> list[int]:
        """The file descriptors that only the guard may hold."""
        return [self.messages, self.requests, *self.group.own_ends]

    def call(self, attempt: int) -> None:
        """Have a spare process become the worker."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGCONT)  # it may have been stopped, which nobody has noticed
        os.write(self.requests, str(attempt).encode())  # (BrokenPipeError: it has ended)

    def close(self) -> None:
        """Close the guard's ends, after the process has ended."""
        self.group.close()
        os.close(self.messages)
        os.close(self.requests)
        self.stacks.close()
        self.answers.close()


class Nursery:
    """Makes the guard's children."""

    def __init__(
        self, *, listener: socket.socket | None, signals: Sequence[int], output: Sequence[int] = (), passed: float = 0.0
    ) -> None:
        """Call in the guard.

        Args:
            listener: of the line between the guards, on rank 0.
            signals: that the guard has blocked, and a child is to receive.
            output: its file descriptors that only the guard may hold.
            passed: seconds since the job began.
        """
        self.listener, self._signals, self._parent = listener, signals, os.getpid()
        self._output, self._began = output, time.monotonic() - passed
        # Launchers signal a rank's whole process group, and the worker should get each signal once, from its guard: so it
        # has a group of its own. Not on a terminal, whose input goes to the foreground group only.
        self.has_own_group = not os.isatty(0)
        self._port = port_of(listener) if listener else 0
        self._spare: Child | None = None
        self._spare_from = 0.0  # when the next may be made
        self._lost = 0  # spare processes that have ended by themselves

    def own_ends(self) -> list[int]:
        """The file descriptors that only the guard may hold."""
        return [*([self.listener.fileno()] if self.listener else []), *self._output]

    def keep_spare(self, but: Sequence[int]) -> Lifeline | None:
        """Fork a spare process, if there is none. Returns its lifeline in it, when it is called. ``but``: as in ``fork()``."""
        if self._spare is not None or time.monotonic() < self._spare_from:
            return None
        try:
            child = self.fork(is_spare=True, but=but)
        except OSError:  # no room for one more process: no reason to end the job
            if os.getpid() != self._parent:  # in that process, which must not go on as a guard
                os._exit(EXIT_FAILURE)
            self._spare_from = time.monotonic() + _TRYING
            return None
        if isinstance(child, Lifeline):
            return child
        self._spare = child
        return None

    def status_of(self, worker: int) -> int | None:
        """The worker's exit status, once it has ended. Reaps the spare process, too, and the orphans that the guard has adopted."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == worker:
                    return ended[1]
                self._lose(ended[0])
        return None

    def successor(self, attempt: int) -> Child | Lifeline:
        """The next worker: the spare process, told to become it, or a new one as by ``fork()``."""
        spare, self._spare = self._spare, None
        if spare is not None:
            with contextlib.suppress(OSError):
                spare.call(attempt)
                return spare
            spare.close()
        return self.fork(attempt=attempt)

    def fork(self, *, is_spare: bool = False, attempt: int = 0, but: Sequence[int] = ()) -> Child | Lifeline:
        """Fork. Returns the child in the guard, and its lifeline in the child: in a spare one when it is called.

        Args:
            attempt: how often the ranks were started again.
            but: further file descriptors that only the guard may hold.

        Raises:
            OSError: there is no room for one more process, or for its files.
        """
        board = Board()
        board.began = self._began
        with contextlib.ExitStack() as opened, outside_of_libraries():  # closed where there is no room for all of it
            group = Group(is_own=self.has_own_group, but=(*self.own_ends(), *but), locks=board.locks)
            opened.callback(group.close)
            messages, pipe = _pipe(opened)
            requested, requests = _pipe(opened)
            stacks, answers = opened.enter_context(new_file()), opened.enter_context(new_file())
            process = os.fork()
            opened.pop_all()
        if process:
            os.close(pipe)
            os.close(requested)
            os.set_blocking(requests, False)  # a worker that reads no more does not hold the guard up
            return Child(
                process=process,
                group=group,
                messages=messages,
                board=board,
                stacks=stacks,
                answers=answers,
                requests=requests,
            )
        if self.has_own_group or is_spare:  # a spare one is not to end with the worker
            group.lead()
        if self.listener is not None:
            self.listener.close()
        for end in (messages, requests, *self._output, *but):
            os.close(end)
        die_with(self._parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        let_show(stacks)
        board.process = os.getpid()
        lifeline = Lifeline(pipe, board, self._port, asked=requested, answers=answers)
        lifeline.attempt = _wait(requested) if is_spare else attempt
        if not self.has_own_group:  # what is typed on a terminal goes to the guard's group
            os.setpgid(0, os.getpgid(self._parent))
        return lifeline

    def _lose(self, process: int) -> None:
        """A child has ended: perhaps the spare one. Each time the next is made later: there may be no memory for it."""
        if self._spare is not None and process == self._spare.process:
            self._spare.close()
            self._spare, self._spare_from = None, time.monotonic() + min(_TRYING, 2.0 ** min(self._lost, 10))
            self._lost += 1


def import_ahead() -> None:
    """Import torch, for a target that is to start in this process later."""
    for module in _IMPORTED:
        with contextlib.suppress(Exception):  # the target may not need it, and else raises it itself
            importlib.import_module(module)


def _pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def _wait(requested: int) -> int:
    """Import torch, and wait to be called. Returns the attempt's number."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
    with paused_collector():
        import_ahead()
        freeze()
    attempt = os.read(requested, 16)
    if not attempt:
        os._exit(EXIT_OK)  # the guard has ended, and needs it no more
    signal.signal(signal.SIGINT, before)
    return int(attempt.rstrip(b"?"))  # it may have been asked already
