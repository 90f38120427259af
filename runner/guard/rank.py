"""A rank of this host: its proxy, and the thread in which its workers are watched, one after the other."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import IO, Any

from runner.base.errors import EXIT_FAILURE
from runner.guard.guard import Guard
from runner.guard.link.link import Link
from runner.guard.link.messages import Gone
from runner.guard.process.child import Child, new_child
from runner.guard.process.events import Events
from runner.guard.process.origin import Origin
from runner.guard.process.wire import send
from runner.guard.report.console import print_text
from runner.guard.report.failure import of_lost_agent
from runner.guard.report.output import RankOutput
from runner.guard.settings import Refused, Watched, Words
from runner.guard.watch import OnHost
from runner.launch.hydra import end_other_ranks
from runner.rendezvous.transport.endpoint import port_of


class Rank:
    """A rank of one launch, watched in a thread of the agent."""

    def __init__(
        self,
        origin: Origin,
        connection: socket.socket,
        prepare: Callable[[Origin], tuple[Words, Watched]],
        *,
        link: Link,
        fork: Callable[[Rank, Child, dict[str, Any], list[int]], None],
        importer: Callable[[], tuple[int, IO[Any]]],
        leave: Callable[[Rank], None],
        workers: Callable[[], set[int]],
    ) -> None:
        """Begin to watch.

        Args:
            prepare: what is printed and watched; raises Refused where the process cannot become a rank.
            link: of this host.
            fork: has a worker forked, which a dictionary describes, and gives it these descriptors.
            importer: the process of which workers are forked, and the file for its stack.
            leave: called when the rank has ended.
            workers: the processes of all ranks' workers.
        """
        self.origin, self.connection, self.events = origin, connection, Events()
        self.code = EXIT_FAILURE
        self._prepare, self._link = prepare, link
        self._fork, self._importer, self._leave, self._workers = fork, importer, leave, workers
        self._child: Child | None = None
        self._words: Words | None = None
        self._printing, self._has_ended = threading.Lock(), False
        self._thread = threading.Thread(target=self._work, name=f"rank of process {origin.process}", daemon=True)
        self._thread.start()

    def print(self, text: str) -> None:
        """Print to the rank's standard error, if it has one."""
        with self._printing:
            if not self._has_ended:
                print_text(f"{text}\n", self.origin.descriptors.get(2))

    def lose_proxy(self) -> None:
        """The proxy has ended before its rank: it was killed."""
        self.events.has_lost_proxy = True
        self.events.put(0)

    def _work(self) -> None:
        try:
            self.code = self._watch()
        except Refused as refused:
            self.code = self._refuse(refused)
        except BaseException as error:  # with the rank's output, as this process has none
            self.print(_described(error))
            self._end_after_defect()
        finally:
            with self._printing:  # its numbers are about to be other files'
                self._has_ended = True
                self.origin.close()
            with contextlib.suppress(OSError):  # the proxy has gone
                send(self.connection, {"exit": self.code})
            self.events.close()
            self._leave(self)

    def _end_after_defect(self) -> None:
        """End what is there without the guard, and tell the other ranks."""
        child = self._child
        if child is not None:
            child.cancel()  # if it is not forked yet
        if child is not None and child.process and child.status is None:
            with contextlib.suppress(OSError):
                os.killpg(child.process, signal.SIGKILL) if child.group.is_own else os.kill(
                    child.process, signal.SIGKILL
                )
        if self._words is not None:
            self._link.leave(self._words.rank, Gone("a defect of the runner's has ended it"))

    def _refuse(self, refused: Refused) -> int:
        """Print why this process is refused, and end. Other ranks wait first: when a rank ends the launcher ends rank 0, which prints."""
        time.sleep(refused.after)
        if refused.line:
            self.print(refused.line)
        end_other_ranks(self.origin.hydra, refused.code)
        return refused.code

    def _watch(self) -> int:
        origin = self.origin
        words, watched = self._prepare(origin)
        self._words, self._watched = words, watched
        self.events.watch(watched.launcher())
        if watched.is_hub:
            self._link.listen()
        self._began = time.monotonic() - watched.passed
        output = RankOutput(watched.log_folder, words.rank, origin.descriptors, with_rank=watched.prefixes_output)
        host = OnHost(origin, self.events, self._link, self._importer, self._workers)
        guard = Guard(host, words, watched, output)
        while True:
            decision = guard.watch(self._new_worker(output, guard.restarts.attempt))
            if self.events.has_lost_proxy:
                guard.end_without_proxy()
                return EXIT_FAILURE
            if not guard.starts_again(decision):
                break
        guard.leave(decision)
        return decision.code

    def _new_worker(self, output: RankOutput, attempt: int) -> Child:
        """Have the next worker forked."""
        origin, watched, self._attempt = self.origin, self._watched, attempt
        # Launchers signal a rank's whole process group, and the worker should get each signal once, from here: so it has a
        # group of its own. Not on a terminal, whose input goes to the foreground group only.
        leads = not origin.is_on_terminal
        self._child = child = new_child(
            leads=leads, wake=lambda: self.events.put(0), importer=self._importer, ignored=origin.ignored
        )
        streams = {**origin.descriptors, **output.ends}
        described = {
            "environment": {_bytes(name): _bytes(value) for name, value in origin.environment.items()},
            "umask": origin.umask,
            "affinity": list(origin.affinity),
            "ignored": list(origin.ignored),
            "numbers": list(streams),
            "leads": leads,
            "group": origin.group,
            "origin": origin.process,
            "port": port_of(self._link.listener) if watched.is_hub and self._link.listener else 0,
            "attempt": attempt,
            "found": watched.found,
            "began": self._began,
        }
        self._fork(
            self, child, described, [*streams.values(), *child.given, child.stacks.fileno(), child.answers.fileno()]
        )
        return child

    def tell_proxy(self, child: Child) -> None:
        """Tell the proxy which process its worker is: the proxy ends the worker if the agent is killed."""
        told = {
            "process": child.process,
            "leads": child.group.is_own,
            "label": self._words.label if self._words else "",
            "failure": of_lost_agent(self._words, self._watched, self._attempt) if self._words else None,
        }
        with contextlib.suppress(OSError):
            send(self.connection, told)


def _described(error: BaseException) -> str:
    """A line for what a user can mend; else a defect of the runner's."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f"runner: too many files are open for one more rank on this host; raise the limit of {_limit()} (ulimit -n)"
        )
    return traceback.format_exc().rstrip()


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _bytes(text: str) -> bytes:
    return os.fsencode(text)
