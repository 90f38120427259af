"""Start of a worker under its guard: a small parent process that outlives it. The fork is before torch and MPI are imported.

The guard is the process that the launcher has started. It passes signals on, bounds the waits that the worker cannot
bound itself (``MPI_Init``, a collective before the ranks have met, an interpreter that hangs while it shuts down), and
ends with the worker's exit code, which makes a launcher end the job. When the worker ends, the guard also ends the
worker's process group: all that the program has started and not put in a session of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from runner.guard.events import WATCHED
from runner.guard.group import adopt_orphans
from runner.guard.guard import Guard
from runner.guard.notice import Notice
from runner.guard.nursery import Lifeline, Nursery
from runner.guard.output import Output
from runner.guard.settings import Watched, Words
from runner.rendezvous.transport.endpoint import allow_open_files, listen


def start_worker(words: Words, watched: Watched) -> Lifeline:
    """Fork. Returns in the worker; the parent stays here and ends with the worker's exit code.

    With ``watched.restarts`` it returns again in the workers that take the place of one that has failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored a child's exit status is lost
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)  # so that no signal is lost between the fork and the watch
    notice = Notice(watched, words.rank)
    if watched.is_middle:
        allow_open_files()  # it holds a connection per rank
    output = Output(watched.log_folder, words.rank, with_rank=watched.prefixes_output)
    listener = _listener() if watched.is_middle else None
    nursery = Nursery(listener=listener, signals=WATCHED, output=output.ends, passed=watched.passed)
    child = nursery.fork()
    if isinstance(child, Lifeline):
        return child
    adopt_orphans()
    guard = Guard(nursery, words, watched, output, notice)
    while True:
        decision = guard.watch(child)
        if isinstance(decision, Lifeline):
            return decision  # this is a spare process, which has become the worker
        if not guard.starts_again(decision):
            break
        successor = nursery.successor(guard.restarts.attempt)
        if isinstance(successor, Lifeline):
            return successor
        child = successor
    guard.leave(decision)
    os._exit(decision.code)


def _listener() -> socket.socket | None:
    try:
        return listen(loopback=False)
    except OSError:
        return None  # the job runs without a line
