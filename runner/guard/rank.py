"""A rank of this host: its proxy, and the thread in which its workers are watched, one after the other.

What the end of a worker means is decided in decision.py, and carried out here.
"""

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

from runner.base.errors import EXIT_FAILURE, EXIT_OK
from runner.guard.decision import SILENTLY, Awaited, Decision, Facts, WorkerEnd, decide
from runner.guard.link.link import Link
from runner.guard.link.messages import Done, Failed, Gone, Returned
from runner.guard.process.events import Events
from runner.guard.process.wire import send
from runner.guard.process.worker import Worker
from runner.guard.process.workers import Workers
from runner.guard.report.console import RankOutput, print_text
from runner.guard.report.failure import of_lost_agent
from runner.guard.settings import Origin, Refused, Watched, Words
from runner.guard.watch import Watch
from runner.launch.hydra import end_other_ranks
from runner.rendezvous.transport.endpoint import port_of

_LOOK_SECONDS = 1.0  # seconds between two looks at the worker, or at what is waited for after its end
_WRITE_SECONDS = 2.0  # seconds for what is still to be written, at the end
_CAUSE_SECONDS = 0.5  # seconds in which another rank may say why this one has ended: its MPI may have ended it


class Rank:
    """A rank of one launch, watched in a thread of the agent."""

    def __init__(
        self,
        origin: Origin,
        connection: socket.socket,
        prepare: Callable[[Origin], tuple[Words, Watched]],
        *,
        link: Link,
        workers: Workers,
        leave: Callable[[Rank], None],
    ) -> None:
        """Begin to watch.

        Args:
            prepare: what is printed and watched; raises Refused where the process cannot become a rank.
            link: of this host.
            workers: of all ranks of this host.
            leave: called when the rank has ended.
        """
        self.origin, self.connection, self.events = origin, connection, Events()
        self.code = EXIT_FAILURE
        self._prepare, self._link, self._workers, self._leave = prepare, link, workers, leave
        self._worker: Worker | None = None
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
        """Note that the proxy was killed before its rank has ended."""
        self.events.has_lost_proxy = True
        self.events.put(0)

    def _work(self) -> None:
        try:
            self.code = self._run()
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
        """End what is there without a decision, and tell the other ranks."""
        worker = self._worker
        if worker is not None:
            worker.cancel()  # if it is not forked yet
        if worker is not None and worker.process and worker.status is None:
            with contextlib.suppress(OSError):
                (os.killpg if worker.leads else os.kill)(worker.process, signal.SIGKILL)
        if self._words is not None:
            self._link.leave(self._words.rank, Gone("a defect of the runner's has ended it"))

    def _refuse(self, refused: Refused) -> int:
        """Print why this process is refused, and end. Other ranks wait first: when a rank ends the launcher ends rank 0, which prints."""
        time.sleep(refused.after)
        if refused.line:
            self.print(refused.line)
        end_other_ranks(self.origin.hydra, refused.code)
        return refused.code

    def _run(self) -> int:
        """Watch one worker after the other. Returns the exit code."""
        origin = self.origin
        words, watched = self._prepare(origin)
        self._words, self._watched = words, watched
        self.events.watch(watched.launcher())
        if watched.is_hub:
            self._link.listen()
        self._began = time.monotonic() - watched.passed
        self._output = RankOutput(watched.log_folder, words.rank, origin.descriptors, with_rank=watched.prefixes_output)
        self._watch = Watch(origin, self.events, self._link, words, watched, self._output)
        while True:
            decision = self._watch_worker(self._new_worker())
            starts_again = not self.events.has_lost_proxy and self._tell_failure(decision)
            self._end_worker()
            if self.events.has_lost_proxy:  # nobody takes an exit code
                self._end()
                return EXIT_FAILURE
            if not starts_again:
                self._leave_job(decision)
                return decision.code
            self._start_again()

    def _new_worker(self) -> Worker:
        """Have the next worker forked."""
        origin, watched = self.origin, self._watched
        # Launchers signal a rank's whole process group, and the worker should get each signal once, from here: so it has a
        # group of its own. Not on a terminal, whose input goes to the foreground group only.
        self._worker = worker = Worker(
            rendezvous_timeout=watched.rendezvous_timeout,
            leads=not origin.is_on_terminal,
            ignored=origin.ignored,
            importer=self._workers.shown_importer,
            wake=lambda: self.events.put(0),
        )
        streams = {**origin.descriptors, **self._output.ends}
        described = {
            "environment": {os.fsencode(name): os.fsencode(value) for name, value in origin.environment.items()},
            "umask": origin.umask,
            "affinity": list(origin.affinity),
            "ignored": list(origin.ignored),
            "numbers": list(streams),
            "leads": worker.leads,
            "group": origin.group,
            "origin": origin.process,
            "port": port_of(self._link.listener) if watched.is_hub and self._link.listener else 0,
            "attempt": self._watch.restarts.attempt,
            "found": watched.found,
            "began": self._began,
        }
        descriptors = [*streams.values(), *worker.given, worker.stacks.fileno(), worker.answers.fileno()]
        self._workers.fork(worker, described, descriptors)
        return worker

    def _watch_worker(self, worker: Worker) -> Decision:
        """Watch a worker until it has ended. Returns what that means."""
        watch = self._watch
        attempt = watch.begin(worker)
        while True:
            status = worker.status
            if worker.has_begun():
                self._tell_proxy(worker)
                watch.write_states()
            if status is not None:
                break
            watch.look()
            if worker.is_late():
                if worker.verdict is None and worker.rendezvous_at:
                    watch.console.say("has not ended in time")
                elif worker.verdict is None:
                    attempt.meeting.say_that_it_is_late()
                if not worker.send_next_signal():
                    return self._conclude(None)
            self.events.wait(worker.left(_LOOK_SECONDS), *([] if worker.is_silent else [worker.messages]))
        watch.receive_from_worker()  # its last words
        if worker.problem and worker.verdict is None:
            watch.console.say(worker.problem)
            worker.verdict = EXIT_FAILURE
        attempt.hang.has_ended = True
        attempt.busy.note(watch.words.rank, is_busy=False)
        worker.look_at_group()
        return self._conclude(status)

    def _conclude(self, status: int | None) -> Decision:
        """Conclude what the worker's end means. ``status``: as waitpid() returns it; None: not even SIGKILL has ended the worker."""
        return Ending(self._watch, self._watch.attempt.end(status, self._watch.signals.passed_on)).conclude()

    def _tell_proxy(self, worker: Worker) -> None:
        """Tell the proxy which process its worker is: the proxy ends the worker if the agent is killed."""
        words = self._watch.words
        told = {
            "process": worker.process,
            "leads": worker.leads,
            "label": words.label,
            "failure": of_lost_agent(words, self._watched, self._watch.restarts.attempt),
        }
        with contextlib.suppress(OSError):
            send(self.connection, told)

    def _tell_failure(self, decision: Decision) -> bool:
        """Tell the other guards if the worker has failed. Returns whether all ranks are started again."""
        watch, attempt = self._watch, self._watch.attempt
        if decision.is_first_failure:
            more = {"traceback": attempt.worker.traceback}
            watch.note(watch.failure(watch.words.rank, decision.code, decision.cause, **more))
        if decision.tells_failure:
            first = watch.report.first
            watch.peers.tell(Failed(attempt=attempt.number, again=decision.starts_again, failure=first))
        return decision.starts_again

    def _end_worker(self) -> None:
        """End what the worker has left."""
        worker = self._watch.attempt.worker
        worker.end_group(self._workers.processes() - {worker.process})
        worker.close()

    def _start_again(self) -> None:
        watch = self._watch
        watch.report.write(is_mended=True)
        watch.restarts.next()
        watch.console.say_once(f"all ranks start again ({watch.restarts.attempt} of {watch.restarts.most})")
        self._output.start_again()

    def _leave_job(self, decision: Decision) -> None:
        """Tell how this rank has ended; within a few seconds."""
        watch = self._watch
        if decision.ends_launch:  # Hydra has them wait for a rank that has not called MPI_Init()
            end_other_ranks(self.origin.hydra, decision.code)
        if watch.state:
            watch.state.end(decision.code, watch.console.said, decision.ended_by)
        if decision.code != EXIT_OK:
            watch.report.write()
        self._end()

    def _end(self) -> None:
        """Leave the link, and write what is left."""
        self._watch.peers.leave()
        self._output.close()
        if self._watch.files:
            self._watch.files.close(_WRITE_SECONDS)


class Ending:
    """Waits for, and collects, the facts about one worker's end."""

    def __init__(self, watch: Watch, end: WorkerEnd) -> None:
        self._watch, self._words, self._end, self._attempt = watch, watch.words, end, watch.attempt
        self._has_spoken = False
        self._until: dict[Awaited, float] = {}  # when the waits for them are over
        self._waited_out: set[Awaited] = set()

    def conclude(self) -> Decision:
        """Say what the end means, and wait for what may change that. Return the decision."""
        watch, has_ended = self._watch, self._end.status is not None
        if has_ended:
            self._speak()
        while (decision := self._decide()).waits_for:
            self._tell_done(decision)
            self._wait_for(decision.waits_for)
        self._tell_done(decision)
        if has_ended and watch.restarts.most:  # what came as it was seen that nobody is waited for
            watch.receive_from_others()
            decision = self._decide()
        return decision

    def _decide(self) -> Decision:
        """Return the decision by what is known now."""
        attempt, restarts, signals = self._attempt, self._watch.restarts, self._watch.signals
        events, peers = self._watch.events, self._watch.peers
        return decide(
            Facts(
                end=self._end,
                size=self._words.size,
                how_to_resume=self._words.how_to_resume,
                attempt=restarts.attempt,
                restarts=restarts.most,
                may_restart=restarts.is_possible,
                is_recorded=self._watch.files is not None,
                said=self._watch.console.said,
                has_spoken=self._has_spoken,
                waited_out=frozenset(self._waited_out),
                follows=attempt.follows,
                hang_is_reported=attempt.hang.is_reported,
                has_lost_launcher=events.is_orphan,
                is_ended_by_signal=signals.has_ended_it,
                is_ended_by_launcher=signals.is_ended_by_launcher,
                is_told_by_another=attempt.others.have_left_before(self._words.rank),
                is_reached=peers.are_reached,
                present=frozenset(peers.present - {self._words.rank}),
                unfinished=frozenset(restarts.unfinished(peers.known(attempt.worker.rendezvous_at))),
            )
        )

    def _speak(self) -> None:
        """Print what is to be said of the end, once it is known whether others do."""
        if (decision := self._decide()).tells_return:
            self._watch.peers.tell(Returned(self._attempt.number, SILENTLY))
        while decision.waits_for is Awaited.CAUSE:
            self._wait_for(decision.waits_for)
            decision = self._decide()
        if message := self._words.no_rendezvous(decision.code) if decision.needs_reason else decision.message:
            self._watch.console.say(message, fix=decision.fix)
        self._watch.say_for_another()
        self._has_spoken = True

    def _tell_done(self, decision: Decision) -> None:
        """Tell the others, once, that this rank has ended well."""
        if decision.tells_done and self._watch.restarts.finish():
            self._watch.peers.tell(Done(self._attempt.number))

    def _wait_for(self, awaited: Awaited) -> None:
        """Wait until there is news, if it may still come."""
        watch, worker = self._watch, self._attempt.worker
        if (left := self._left(awaited)) <= 0:
            self._waited_out.add(awaited)
        elif awaited is Awaited.EARLIER_FAILURE:
            watch.events.wait_for_messages(left)
            watch.receive_from_others()
        elif awaited is Awaited.CAUSE:
            watch.events.wait(left)
            watch.take_events()
        else:
            watch.events.wait(left)
            worker.look_at_group()
            watch.take_events()
            watch.say_for_another()
            watch.look_for_a_hang()

    def _left(self, awaited: Awaited) -> float:
        """Return the seconds to wait for a fact at most; 0 if it cannot come."""
        if awaited is Awaited.PEERS:
            return _LOOK_SECONDS
        if awaited is Awaited.HANG_REPORT:
            return _LOOK_SECONDS if self._attempt.hang.waits() else 0.0
        now, peers = time.monotonic(), self._watch.peers
        may_come = peers.are_reached if awaited is Awaited.CAUSE else bool(peers.present)
        return self._until.setdefault(awaited, now + (_CAUSE_SECONDS if may_come else 0.0)) - now


def _described(error: BaseException) -> str:
    """Return a line for what a user can mend; else the traceback of a defect of the runner's."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"runner: too many files are open for one more rank on this host; raise the limit of {limit} (ulimit -n)"
    return traceback.format_exc().rstrip()
