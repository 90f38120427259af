"""The guard: a small parent process of the worker that outlives it. The fork is before torch and MPI are imported.

The guard is the process that the launcher has started. It passes signals on, bounds the waits that the worker cannot
bound itself (``MPI_Init``, a collective before the ranks have met, an interpreter that hangs while it shuts down), and
ends with the worker's exit code, which makes a launcher end the job. When the worker ends, the guard also ends the
worker's process group: all that the program has started and not put in a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict

from runner.errors import EXIT_FAILURE, EXIT_HANG, EXIT_OK, EXIT_REQUEUE, EXIT_USAGE
from runner.guard.events import ENDS, EVENT, TELLS, WATCHED, hear, name_of, read, readable
from runner.guard.group import Group, adopt_orphans
from runner.guard.hang import Hang, Patience, Reason
from runner.guard.launcher import described, end_of, error_output_of
from runner.guard.line import GONE, Address, Line, Message
from runner.guard.nursery import Child, Lifeline, Nursery
from runner.guard.settings import Watched, Words
from runner.guard.state import StateFile
from runner.rendezvous.endpoint import allow_open_files, listen

# Seconds that a failed worker's exit handlers get before it is killed, and that its child processes get between
# SIGTERM and SIGKILL.
GRACE = 2.0
_ORPHANED = 5.0  # seconds between SIGTERM and SIGKILL where the launcher has ended
_AFTER_ANOTHER = 1.0  # seconds that a worker gets after another rank has failed, before SIGTERM
_SAVING = 30.0  # seconds that a worker which saves on SIGTERM gets for it
_SPARE_AFTER = 2.0  # seconds after the rendezvous: a spare process is not to slow the start down
_REPORTING = 10.0  # seconds until rank 0's guard has reported a hang
_ROUND = 1.0  # seconds between two looks at the worker


def start_worker(words: Words, watched: Watched) -> Lifeline:
    """Fork. Returns in the worker; the parent stays here and ends with the worker's exit code.

    With ``watched.restarts`` it returns again in the workers that take the place of one that has failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored a child's exit status is lost
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)  # so that no signal is lost between the fork and the watch
    if watched.is_middle:
        allow_open_files()  # it holds a connection per rank
    nursery = Nursery(listener=_listener() if watched.is_middle else None, signals=WATCHED)
    worker = nursery.fork()
    if isinstance(worker, Lifeline):
        return worker
    adopt_orphans()
    guard = _Guard(nursery, words, watched)
    while True:
        ended = guard.watch(worker)
        if isinstance(ended, Lifeline):
            return ended  # this is a spare process, which has become the worker
        if not guard.starts_again(ended):
            break
        successor = guard.called() or nursery.fork(attempt=guard.attempt)
        if isinstance(successor, Lifeline):
            return successor
        worker = successor
    guard.leave(ended)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(ended)


def _listener() -> socket.socket | None:
    try:
        return listen(loopback=False)
    except OSError:
        return None  # the job runs without a line


class _Guard:
    def __init__(self, nursery: Nursery, words: Words, watched: Watched) -> None:
        self._nursery, self._words, self._watched = nursery, words, watched
        self._launcher = watched.launcher()
        self._end_of_launcher = end_of(self._launcher)
        self._listener = nursery.listener
        self._line: Line | None = None
        self._passed_on: set[int] = set()
        self._ignored = {number for number in ENDS if signal.getsignal(number) == signal.SIG_IGN}  # nohup
        self._events, events = os.pipe()
        self._heard, self._wake = os.pipe()  # a byte for each message of the line
        for end in (self._events, self._heard):
            os.set_blocking(end, False)
        threading.Thread(target=hear, args=(events,), daemon=True).start()
        self._is_orphan = False
        self.attempt = 0
        self._child: Child | None = None
        self.spare: Child | None = None
        self._may_start_again = watched.restarts > 0

    def _begin(self, worker: Child) -> None:
        """Turn to a new worker."""
        if self._child is not None:
            self._child.close()
        self._child, self.spare = worker, None
        self._worker, self._pipe, self._board = worker.process, worker.messages, worker.board
        os.set_blocking(self._pipe, False)
        self._group = Group(
            worker.process, is_own=self._nursery.has_own_group, but=(self._pipe, *self._nursery.own_ends())
        )
        self._patience = Patience(worker.process, worker.board, self._watched.hang_after)
        self._hang = Hang(worker.process, worker.stacks)
        folder = self._watched.log_folder
        self._state = None if folder is None else StateFile(folder, worker.board, worker.process, **self._watched.names)
        self._said = ""  # what this guard has printed last, or the worker's own cause of its end
        self._verdict: int | None = None  # the exit code, if it is known before the worker's end
        self._is_everywhere = False  # all ranks end like that
        self._saves = False  # on SIGTERM
        self._follows = False  # another rank has failed
        self._met: float | None = None  # when the ranks have met
        self._done: set[int] = set()  # other ranks whose workers have ended well
        self._signals: list[int] = [signal.SIGKILL]  # that end the worker, one at each deadline
        self._received = b""  # from the worker, without its end
        self._deadline: float | None = time.monotonic() + self._watched.meet_within

    def watch(self, worker: Child) -> int | Lifeline:
        """Watch a worker until it has ended. Returns the exit code; in a spare process that was called, its lifeline."""
        self._begin(worker)
        sources = [self._events, self._pipe, self._heard]
        if self._end_of_launcher and not self._is_orphan:
            sources.append(self._end_of_launcher)
        ready: list[int] = []
        code: int | None = None
        while True:
            status = self._status() if code is None else None
            # After _status(), so that the worker's last message is read.
            if code is None and not self._read_worker() and self._pipe in sources:
                sources.remove(self._pipe)
            if status is not None:
                self._hang.has_ended = True
                code = self._exit_code(status)
                if not self._waits_for_others(code):
                    return code
                sources = [end for end in sources if end != self._pipe]  # a child of the worker may hold it open
            if self._events in ready:
                for event in EVENT.iter_unpack(os.read(self._events, 256 * EVENT.size)):
                    self._receive(*event)
            if self._end_of_launcher in ready:
                sources = [end for end in sources if end != self._end_of_launcher]
                self._is_orphan = True
                self._end_worker(EXIT_FAILURE, _ORPHANED)
                self._signal(signal.SIGTERM)
                self._say("the launcher has ended without its ranks, so this one ends too")
            if self._heard in ready:
                os.read(self._heard, 256)
                for message in self._line.heard() if self._line else ():
                    self._take(message)
            if code is not None:
                self._look_for_a_hang()
                if self._hang.is_reported:
                    return EXIT_HANG
                if self._follows or not self._waits_for_others(code):
                    return EXIT_FAILURE if self._follows else code
            elif (spare := self._look()) is not None:
                return spare
            elif self._deadline is not None and time.monotonic() >= self._deadline:
                if self._saves and self._verdict is None and self._board.read().phase == "saving":
                    self._deadline = time.monotonic() + _ROUND  # as long as it takes
                    continue
                if self._verdict is None and self._met:
                    self._verdict = 128 + signal.SIGTERM  # it was to save, and has not
                elif self._verdict is None:
                    self._verdict = EXIT_FAILURE
                    self._say(self._words.no_rendezvous(None))
                elif not self._signals:  # not even SIGKILL ends it, for example in a file system that hangs
                    return self._verdict
                self._signal(self._signals.pop(0))
                self._deadline = time.monotonic() + GRACE
            left = _ROUND if self._deadline is None else min(_ROUND, max(0.0, self._deadline - time.monotonic()))
            ready = readable(sources, left)

    def starts_again(self, code: int) -> bool:
        """Whether all ranks are started again after this one has ended. Tells the other guards."""
        again = (
            self._may_start_again
            and self.attempt < self._watched.restarts
            and (bool(self._met) or self.attempt > 0)
            and not self._is_everywhere
            and not self._is_orphan
            and not self._passed_on.intersection(ENDS)
            and code not in (EXIT_OK, EXIT_USAGE, EXIT_REQUEUE)
            and (self._words.size == 1 or (self._line is not None and self._line.is_open))
        )
        is_known = (self._follows or self._hang.is_reported) and (again or not self._watched.restarts)
        if self._line and code != EXIT_OK and not self._is_everywhere and not is_known:
            self._line.tell({"failed": code, "attempt": self.attempt, "again": again})
        self._group.end(GRACE)
        if again:
            self.attempt += 1
            if self._words.is_reporting:
                self._say(f"all ranks start again ({self.attempt} of {self._watched.restarts})", is_named=False)
        return again

    def called(self) -> Child | None:
        """The spare process, told to become the worker; None if there is none."""
        if self.spare is not None:
            with contextlib.suppress(OSError):
                self.spare.call(self.attempt)
                return self.spare
        return None

    def leave(self, code: int) -> None:
        """Tell the others how this rank has ended, and leave their line."""
        if self._state:
            self._state.end(code, self._said)
        if self._line:
            self._line.close()

    def _waits_for_others(self, code: int) -> bool:
        """Whether a rank stays after its worker: one that hung until that is reported, one that ended well until all have."""
        line = self._line
        if code == EXIT_HANG and self._words.rank in self._hang.reasons and line is not None and line.is_open:
            return not self._hang.is_reported and time.monotonic() < self._report_by
        if code != EXIT_OK or not self._may_start_again or line is None or not line.is_open or self._is_orphan:
            return False
        if self._words.rank not in self._done:
            self._done.add(self._words.rank)
            line.tell({"done": self.attempt})
        return len(self._done) < self._words.size and not self._passed_on.intersection(ENDS)

    def _read_worker(self) -> bool:
        """Take the worker's messages. Returns whether there may be more."""
        content = b""
        while chunk := read(self._pipe):
            content += chunk
        self._received += content
        *lines, self._received = self._received.split(b"\n")
        for message in map(json.loads, lines):
            if "met" in message:
                self._deadline, self._met = None, time.monotonic()
                if message["met"] and not self._line and (message["met"]["rank"] > 0 or self._listener):
                    self._line = Line(Address(**message["met"]), self._listener, self._wake)
            else:
                self._verdict, self._is_everywhere = message["code"], message["everywhere"]
                self._said = message["why"]
                self._deadline = time.monotonic() + GRACE
        return chunk is None

    def _end_worker(self, code: int, within: float, *signals: int) -> None:
        """End the worker, with this exit code unless one is known: by the first signal after ``within`` seconds, SIGKILL last."""
        self._verdict = code if self._verdict is None else self._verdict
        self._signals = [*signals, signal.SIGKILL]
        self._deadline = time.monotonic() + within

    def _take(self, message: Message) -> None:
        """A message of another guard."""
        rank = message["rank"]
        if "failed" in message or GONE in message:
            if message.get("attempt", self.attempt) < self.attempt and message["again"]:
                return  # of workers that are no longer there
            self._may_start_again = self._may_start_again and message.get("again", False)
            if self._verdict is None or self._may_start_again:
                self._follows = True
            if self._verdict is None:
                if GONE in message and (rank == 0 or self._words.is_reporting):
                    self._say(f"rank {rank} is gone: {message[GONE]}; so this rank ends too", last=True)
                self._end_worker(EXIT_FAILURE, 0.0 if self._may_start_again else _AFTER_ANOTHER, signal.SIGTERM)
        elif "done" in message:
            if message["done"] == self.attempt:
                self._done.add(rank)
        elif "hangs" in message:
            self._hang.reasons[rank] = Reason(**message["hangs"])
        elif "show" in message:
            assert self._line is not None
            self._line.tell({"stacks": self._hang.own_stacks(), "to_middle": True})
        elif "stacks" in message:
            self._hang.stacks[rank] = message["stacks"]
        elif "hung" in message:
            self._hang.is_reported = True
            self._end_worker(EXIT_HANG, 0.0)

    def _look(self) -> Lifeline | None:
        """See how the worker does, and keep a spare one. Returns a lifeline in a spare process that was called."""
        if self._state:
            self._state.update()
        if self._verdict is not None or not self._met:
            return None
        if self._words.rank not in self._hang.reasons and (reason := self._patience.lost()):
            self._hang.reasons[self._words.rank] = reason
            self._report_by = time.monotonic() + _REPORTING
            if self._line and not self._listener:
                self._line.tell({"hangs": asdict(reason), "to_middle": True})
        self._look_for_a_hang()
        is_time = self._may_start_again and not self.spare and time.monotonic() - self._met > _SPARE_AFTER
        if not is_time or self.attempt >= self._watched.restarts:
            return None
        try:
            child = self._nursery.fork(is_spare=True, but=(self._events, self._heard, self._wake, self._pipe))
        except OSError:  # no room for one more process: no reason to end the job
            self._met = time.monotonic() + 60.0
            return None
        if isinstance(child, Lifeline):
            return child
        self.spare = child
        return None

    def _look_for_a_hang(self) -> None:
        """If a rank makes no progress, find out with the other guards where each rank is."""
        if not self._hang.reasons or self._hang.is_reported:
            return
        if self._line is None or not (self._listener or self._line.is_open):
            self._hang.stacks[self._words.rank] = self._hang.own_stacks()
            self._report_hang([self._words.rank])
        elif self._listener:
            if not self._hang.is_asked:
                self._line.tell({"show": True})
                self._hang.stacks[0] = self._hang.own_stacks()
                self._hang.wait()
            elif self._hang.is_complete(self._words.size):
                self._report_hang(range(self._words.size))
                self._line.tell({"hung": True})

    def _report_hang(self, ranks: Iterable[int]) -> None:
        self._hang.is_reported = True
        self._say(self._hang.report(ranks), is_named=False)
        self._end_worker(EXIT_HANG, 0.0)

    def _status(self) -> int | None:
        """The worker's exit status, if it has ended. Reaps the orphans that the guard has adopted."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self._worker:
                    return ended[1]
                if self.spare and ended[0] == self.spare.process:
                    self.spare = None
        return None

    def _receive(self, number: int, sender: int, code: int) -> None:
        if number == signal.SIGCHLD or (code > 0 and not self._group.is_own):
            return  # the terminal has sent it to the whole group, and so to the worker
        is_new = number not in self._passed_on
        self._passed_on.add(number)
        self._signal(number)
        if is_new and number in ENDS and number not in self._ignored and self._verdict is None:
            self._say_ended(name_of(number), sender)
            if number == signal.SIGTERM and self._board.read().is_in_training:  # it saves
                self._deadline = time.monotonic() + _SAVING
                self._saves = True

    def _signal(self, number: int) -> None:
        if not self._hang.has_ended:  # else the number may be another process's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker, number)

    def _say_ended(self, name: str, sender: int) -> None:
        """Print who ends this rank. If the launcher ends all ranks, only one of them prints it."""
        how_to_resume = f"; {self._words.how_to_resume}" if self._words.how_to_resume and self._met else ""
        if self._launcher and sender in (os.getppid(), self._launcher):
            if self._words.is_reporting:
                text = "the job was ended, or another rank has failed and says so itself"
                self._say(f"{name} from the launcher: {text}{how_to_resume}", last=True)
        else:
            self._say(f"{name} from {described(sender)}{how_to_resume}")

    def _exit_code(self, status: int) -> int:
        if self._verdict is not None:
            return self._verdict
        if self._words.rank in self._hang.reasons:  # showing its stack has let a stopped worker go on to its end
            return EXIT_HANG
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            if -code not in self._passed_on or -code in TELLS:  # for the others the sender was printed
                self._say(f"killed by {name_of(-code)}")
            return 128 - code
        if code == EXIT_OK and (progress := self._board.read()).is_in_training:
            self._say(f"left early, with exit code 0 after step {progress.step} of the training")
            return EXIT_FAILURE
        # Before the ranks have met, only a library such as MPI_Init() ends the process without a message of the runner.
        if not self._met and 0 < code < 128 and code != EXIT_USAGE and not self._passed_on:
            self._say(self._words.no_rendezvous(code))
        return code

    def _say(self, text: str, *, last: bool = False, is_named: bool = True) -> None:
        output = error_output_of(self._launcher) if last and not self._words.is_shown_to_the_end else None
        self._said = text.partition("\n")[0]
        with contextlib.suppress(OSError):  # the launcher that took the output may be gone
            label = f"{self._words.label}: " if is_named else ""
            print(f"runner: {label}{text}", file=output or sys.stderr, flush=True)
