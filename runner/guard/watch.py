"""A guard's watch over its workers: their ends, their progress, signals, and what the other guards say."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from runner.base.errors import EXIT_FAILURE, EXIT_HANG, EXIT_OK, EXIT_REQUEUE, EXIT_USAGE
from runner.base.locks import remove_left
from runner.guard.collectives import Requests
from runner.guard.console import Console
from runner.guard.events import Events
from runner.guard.failure import Failure, Report
from runner.guard.files import Files
from runner.guard.hang import Hang, Patience
from runner.guard.line import Address
from runner.guard.messages import Apart, Busy, Done, Ends, Failed, Gone, Host, Hung, Message, Patient, Returned, State
from runner.guard.notice import Notice
from runner.guard.nursery import Child, Lifeline, Nursery
from runner.guard.others import Others
from runner.guard.output import Output
from runner.guard.peers import Peers
from runner.guard.restarts import Restarts
from runner.guard.settings import Watched, Words
from runner.guard.signals import Signals
from runner.guard.states import States
from runner.guard.strangers import Strangers
from runner.guard.worker import GRACE, Worker
from runner.guard.worker_messages import Computes, Fails, Leaves, Met, Seeks
from runner.hardware.nvml import GpuMeter
from runner.launch.hydra import end_other_ranks
from runner.launch.siblings import HOW_TO_START

_ORPHANED = 5.0  # seconds between SIGTERM and SIGKILL where the launcher has ended
# Seconds that a worker gets after another rank has failed: before SIGTERM, or SIGKILL in a training.
_AFTER_ANOTHER = 1.0
# A spare process is made when the training has begun, or so many seconds after the rendezvous: importing torch, too, it would slow
# the start down.
_SPARE_AFTER = 5.0
_CAUSE = 0.5  # seconds in which another rank may say why this one has ended without a word: its MPI may have ended it
_SILENTLY = "without Python's own end: by os._exit(), os.exec…() or a library"
_STOPPING = 0.3  # seconds in which all guards have stopped their workers, after a hang was reported
# Seconds after which a worker that does not look for the others is slow: it only reads a few files before.
_STARTING = 20.0
_ROUND = 1.0  # seconds between two looks at the worker
_WRITING = 2.0  # seconds for what is still to be written, at the end


class Guard:
    """A rank's guard: it watches one worker after the other."""

    def __init__(self, nursery: Nursery, words: Words, watched: Watched, output: Output, notice: Notice) -> None:
        self._nursery, self._words, self._watched, self._output = nursery, words, watched, output
        launcher = watched.launcher()
        self._events = Events(launcher)
        self._console = Console(words, launcher, output)
        complain = self._console.complain if watched.is_first_on_host else None
        self._files = Files(complain) if watched.log_folder else None
        output.pass_on(self._files)
        self._report = Report(words, watched, self._files)
        is_alone = words.size == 1
        self._signals = Signals(
            self._console,
            notice,
            self._say_before_a_signal,
            is_alone=is_alone,
            script_saves_within=watched.script_saves_within,
        )
        self.restarts = Restarts(watched.restarts, words.rank, words.size)
        self._peers = Peers(words.rank, nursery.listener, self._events, self.restarts)
        self._states = States(watched, self._files) if self._files else None

    def _begin(self, child: Child) -> Worker:
        """Turn to a new worker."""
        words = self._words
        self._worker = Worker(child, self._watched.rendezvous_timeout)
        if self._states:
            self._states.begin(child)
        requests = Requests(child.requests, child.answers)
        watched = self._watched
        self._patience = Patience(
            child.process,
            child.board,
            watched.hang_after,
            watched.save_within,
            watched.in_collective,
            requests if words.size > 1 else None,
            in_call=watched.in_call,
            trains=watched.trains,
        )
        self._busy = set[int]()  # the ranks that are, as rank 0's guard knows them; on others only whether this one is
        calls = requests.take if words.size > 1 else list
        self._hang = Hang(child.process, child.stacks, words.rank, words.size, calls, self.restarts.attempt)
        self._report.start_again()
        self._console.said = ""
        self._follows = False  # another rank has failed
        self._is_slow = False  # that it starts slowly was said
        self._strangers = Strangers(words.find_siblings)
        self._is_lost_early = False  # it was stopped before it had met the others; it may have met them since
        self._others = Others(words, self._report.hosts, self._console)
        return self._worker

    def watch(self, child: Child) -> int | Lifeline:
        """Watch a worker until it has ended. Returns the exit code; in a spare process that was called, its lifeline."""
        worker = self._begin(child)
        self._receive_from_others()  # what they have said of this attempt before
        while (status := self._status()) is None:
            self._receive_from_worker()
            self._take_events()
            if (spare := self._look()) is not None:
                return spare
            if worker.is_late():
                if worker.verdict is None and worker.rendezvous_at:
                    self._console.say("has not ended in time")
                elif worker.verdict is None:
                    self._say_that_it_has_not_met_the_others()
                if not worker.send_next_signal() and worker.verdict is not None:
                    return worker.verdict
            self._events.wait(worker.left(_ROUND), *([] if worker.is_silent else [worker.messages]))
        self._receive_from_worker()  # its last words
        worker.has_ended = self._hang.has_ended = True
        self._note_busy(self._words.rank, is_busy=False)
        worker.group.end_if_empty(worker.process)
        self._remove_locks(worker)
        code, what, fix = worker.outcome(status, self._signals.passed_on, self._words)
        if code == 128 + signal.SIGTERM and self._others.ends_with is not None:
            # All ranks end with that code; the launcher was faster. srun shows the largest code.
            code, worker.ended_by = self._others.ends_with, None
        if worker.verdict is None and self._hang.is_own:  # showing its stack has let a stopped worker go on to its end
            code, what, worker.ended_by = EXIT_HANG, "", None
        if what:
            self._console.say(what, fix=fix)
        elif worker.verdict is None and worker.rendezvous_at and not worker.has_said and self._words.size > 1:
            self._say_how_it_left(code)
        self._say_for_another()
        if code == EXIT_OK and (self._follows or self._hang.is_reported):
            return EXIT_HANG if self._hang.is_reported else EXIT_FAILURE
        while self._waits_for_others(code):
            self._events.wait(_ROUND)
            worker.group.end_if_empty(worker.process)
            self._take_events()
            self._say_for_another()
            self._look_for_a_hang()
            if self._hang.is_reported:
                return EXIT_HANG
            if self._follows:
                return EXIT_FAILURE
        if self.restarts.most:  # what came as it was seen that nobody is waited for
            self._receive_from_others()
        return EXIT_FAILURE if code == EXIT_OK and self._follows else code

    def starts_again(self, code: int) -> bool:
        """Whether all ranks are started again after this one has ended. Tells the other guards."""
        worker, restarts = self._worker, self.restarts
        self._note_own_failure(code)
        again = (
            restarts.mends(code, after_rendezvous=worker.rendezvous_at is not None)
            and not worker.is_everywhere
            and not self._is_ended_from_outside
            and (self._words.size == 1 or self._peers.are_reached)
        )
        is_known = (self._follows or self._hang.is_reported) and (again or not restarts.most)
        if code != EXIT_OK and not (worker.is_everywhere or is_known):
            self._peers.tell(Failed(attempt=restarts.attempt, again=again, failure=self._report.first))
        worker.group.end(worker.process, GRACE)
        if again:
            self._report.write(is_mended=True)
            restarts.next()
            self._console.say_once(f"all ranks start again ({restarts.attempt} of {restarts.most})")
            self._output.start_again()
            worker.close()
        return again

    def leave(self, code: int) -> None:
        """Tell the others how this rank has ended, leave their line, and write what is left; within a few seconds."""
        has_met = self._worker.rendezvous_at is not None and not self._is_lost_early
        if code != EXIT_OK and not (has_met or self._worker.has_said):
            end_other_ranks(os.environ, code)  # Hydra has them wait for a rank that has not called MPI_Init()
        if self._states:
            self._states.end(code, self._console.said, self._worker.ended_by)
        if code != EXIT_OK:
            self._report.write()
        if self._states and self._states.come_by_line:
            for rank, state in self._peers.last_states():
                self._states.take(rank, state)
        self._peers.leave()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        self._output.close()
        if self._states:
            self._states.close()
        if self._files:
            self._files.close(_WRITING)

    @property
    def _is_next_to_report(self) -> bool:
        """Whether this rank reports what concerns all if rank 0 cannot."""
        return self._words.rank == 1 or self._watched.is_first_on_host

    @property
    def _is_ended_from_outside(self) -> bool:
        return self._events.is_orphan or self._signals.has_ended_it

    def _waits_for_others(self, code: int) -> bool:
        """Whether a rank stays after its worker: one that hung until that is reported, one that ended well until all have.

        Without restarts only rank 0 does: the others' messages go by its guard.
        """
        if code == EXIT_HANG and self._hang.is_own and self._peers.are_reached:
            return self._hang.waits()
        if code != EXIT_OK or not self._peers.are_reached or self._events.is_orphan:
            return False
        if not self.restarts.is_possible:
            if not self._worker.has_said:  # only the end of this process lets an MPI's launcher see that it has left
                return False
            return bool(self._peers.others_present) and not self._is_ended_from_outside
        if self.restarts.finish():
            self._peers.tell(Done(self.restarts.attempt))
        return (
            self.restarts.is_waited_for(self._peers.known(self._worker.rendezvous_at))
            and not self._is_ended_from_outside
        )

    def _take_events(self) -> None:
        known = self._signals.first_end
        for event in self._events.signals():
            self._signals.take(self._worker, *event)
        if self._states and self._signals.first_end and not known:
            self._states.note(*self._signals.first_end)
        if self._events.has_lost_launcher():
            self._worker.end(EXIT_FAILURE, _ORPHANED)
            self._worker.signal(signal.SIGTERM)
            self._console.say("the launcher has ended without its ranks, so this one ends too")
        self._receive_from_others()

    def _receive_from_worker(self) -> None:
        worker = self._worker
        for message in worker.received():
            match message:
                case Seeks():
                    worker.has_started = True
                case Met():
                    worker.complete_rendezvous()
                    self._signals.bound_interrupted(worker)
                    if message.address:
                        self._join(message.address)
                case Computes():
                    if self._states:
                        self._states.use_gpu(GpuMeter(message.gpu))
                case Leaves():
                    worker.has_said = True
                    if message.code == EXIT_OK:
                        self._peers.tell(Returned(self.restarts.attempt, ""))
                case Fails():
                    self._console.said = message.why
                    worker.has_failed(message)
                    self._tell_before_the_launcher_kills(message)
                    if message.everywhere:
                        self._peers.tell(Ends(message.code, message.why))

    def _tell_before_the_launcher_kills(self, message: Fails) -> None:
        """Tell how the worker ends where its launcher ends the job: it may kill this guard next."""
        if not self._signals.is_ended_by_launcher:
            return
        if message.why and self._words.is_reporting:
            self._console.repeat(message.why)
        if self._states:
            self._states.end(message.code, message.why, message.signal)

    def _join(self, address: Address) -> None:
        """Join the line of the guards: after the first rendezvous."""
        if self._peers.join(address, self._watched.names.get("host")):
            self._report.hosts[0] = address.name
            if self._states:
                self._states.join(self._peers.tell, address)

    def _receive_from_others(self) -> None:
        for rank, message in self._peers.received():
            self._take(rank, message)

    def _take(self, rank: int, message: Message) -> None:
        """A message of another guard."""
        match message:
            case Failed():
                self._follow(rank, message.failure, again=message.again)
            case Gone():
                self._follow(rank, self._failure(rank, None, message.why), gone=message.why)
            case Returned():
                self._worker.board.note_end(rank)
                self._others.has_returned(rank, message)
                if self._signals.is_ended_by_launcher:
                    self._others.say_who_left(self._peers.present)
            case Done():
                self.restarts.done.add(rank)
            case Hung():
                self._hang.is_reported = True
                self._end_hung()
                self._note(message.failure)
            case Busy():
                self._note_busy(rank, is_busy=message.is_busy)
            case Patient():
                self._patience.others_are_busy = message.is_needed
            case Ends():
                self._others.end(rank, message)
            case Host():
                self._report.hosts[rank] = message.name
            case Apart():
                if self._watched.is_first_on_host:
                    self._console.complain(
                        f"the ranks of this host do not reach rank 0's host at {message.why}, so only the launcher ends them if "
                        "another rank fails; a firewall may block it"
                    )
            case State():
                if self._states:
                    self._states.take(rank, message)
            case _:
                self._peers.tell(self._hang.take(rank, message))

    def _say_for_another(self) -> None:
        if not self._worker.is_everywhere:
            self._others.say_why()

    def _say_before_a_signal(self, is_launchers: bool) -> None:
        """Print why the job is ended, if another guard has told that."""
        if is_launchers:
            self._others.say_who_left(self._peers.present)
        self._say_for_another()

    def _follow(self, rank: int, failure: Failure | None, *, again: bool = False, gone: str = "") -> None:
        """Another rank has failed, or its guard is gone: this one ends, too."""
        worker, restarts = self._worker, self.restarts
        restarts.is_possible = restarts.is_possible and again
        if worker.verdict is None or restarts.is_possible:
            self._follows = True
        if failure:
            self._note(failure)
        if worker.verdict is None:
            if gone and self._states:
                self._states.lost(rank)
            # Rank 0 reports what concerns all.
            if gone and (self._words.is_reporting if rank else self._is_next_to_report):
                host = self._report.hosts.get(rank)
                named = f"rank {rank} on host {host}" if host else f"rank {rank}"
                self._console.say(f"{named} is gone: {gone}; so this rank ends too", last=True)
            # The training loop only notes SIGTERM, to save with all ranks: they are no longer there.
            progress = worker.board.read()
            signals = [] if progress.is_in_training and progress.phase != "saving" else [signal.SIGTERM]
            worker.end(EXIT_FAILURE, 0.0 if restarts.is_possible else _AFTER_ANOTHER, *signals)

    def _look(self) -> Lifeline | None:
        """See how the worker does, and keep a spare one. Returns a lifeline in a spare process that was called."""
        worker = self._worker
        if worker.verdict is not None:
            return None
        has_met = worker.rendezvous_at is not None
        if has_met:
            self._signals.give_notice_when_due(worker)
        reason = None if self._hang.is_own else self._patience.lost(has_met=has_met)
        if reason:
            reason = self._hang.begin(reason)
            self._is_lost_early = not has_met
            if not self._peers.is_middle:
                self._peers.tell(reason)
        self._note_busy(self._words.rank, is_busy=self._patience.is_busy and not self._hang.is_own)
        for rank in self._busy & self._peers.silent:  # what it does is not known any more
            self._note_busy(rank, is_busy=False)
        self._look_for_a_hang()
        self._look_for_a_slow_start()
        if worker.has_started and not has_met and self._words.size > 1:
            self._look_for_other_programs()
        if worker.rendezvous_at is None or self.restarts.is_last:
            return None
        if worker.board.read().step == 0 and time.monotonic() - worker.rendezvous_at < _SPARE_AFTER:
            return None
        return self._nursery.keep_spare((*self._events.own_ends, *worker.own_ends))

    def _note_busy(self, rank: int, *, is_busy: bool) -> None:
        """A worker does what may take longer than a step, or no longer; told where that is new."""
        if is_busy == (rank in self._busy):
            return
        attempt, were_busy = self.restarts.attempt, bool(self._busy)
        self._busy ^= {rank}
        if not self._peers.is_middle:
            self._peers.tell(Busy(attempt, is_busy))
        elif were_busy != bool(self._busy):
            self._patience.others_are_busy = not were_busy
            self._peers.tell(Patient(attempt, not were_busy))

    def _look_for_a_slow_start(self) -> None:
        """Say where the worker is that does not look for the other ranks: they know only that it is absent."""
        if self._is_slow or self._worker.has_started or self._patience.is_stopped:
            return
        if self._patience.watched > min(_STARTING, self._watched.rendezvous_timeout / 2):
            self._is_slow = True
            self._console.complain(f"has not started yet: it is in {self._hang.place()}")

    def _look_for_other_programs(self) -> None:
        """End a wait for ranks that will never meet this one, and name those that may not."""
        if (news := self._strangers.look()) is None:
            return
        text, is_certain = news
        if text and is_certain:
            self._console.say(text, fix=HOW_TO_START, is_named=False)
        elif text:
            self._console.complain(text)
        if is_certain:
            self._worker.end(EXIT_USAGE, 0.0 if text else GRACE)  # the launcher ends all when the first has ended

    def _say_that_it_has_not_met_the_others(self) -> None:
        if self._worker.has_started and self._strangers.known:
            self._console.say(f"has not met all other ranks: {self._strangers.known}", fix=HOW_TO_START)
        elif self._worker.has_started:
            self._console.say(self._words.no_rendezvous(None))
        else:
            self._console.say("has not started in time", fix="allow more with --timeout")
        # Last: it may take two seconds, and the launcher may end this guard.
        self._console.complain(f"it was in {self._hang.place()}")

    def _look_for_a_hang(self) -> None:
        text = self._hang.look(self._peers, self._report.hosts)
        if text:
            what, _, shown = text.partition("\n")
            failure = self._failure(self._hang.late[0], EXIT_HANG, what, stacks=shown)
            # First: what takes the output may be stopped, too.
            if self._peers.is_middle:
                self._peers.tell(Hung(failure))
            self._end_hung()
            step = self._worker.board.read().step
            self._console.say(text, fix=self._hang.fix(self._words.how_to_resume if step else ""), is_named=False)
            self._note(failure)

    def _end_hung(self) -> None:
        """Stop the worker, and kill it when all are stopped.

        An MPI that sees another rank's end would end the job by a code of its own.
        """
        self._worker.signal(signal.SIGSTOP)
        self._worker.end(EXIT_HANG, _STOPPING)

    def _note_own_failure(self, code: int) -> None:
        """Take the end of this rank for the job's failure, if no other is known. A job that was ended from outside has not failed."""
        is_asked_for = code in (EXIT_OK, EXIT_REQUEUE, 128 + signal.SIGINT) or self._signals.has_ended_it
        if not (is_asked_for or self._console.said) and self._files:
            end = time.monotonic() + (_CAUSE if self._peers.present else 0.0)
            while not self._follows and (left := end - time.monotonic()) > 0:
                self._events.wait_for_messages(left)
                self._receive_from_others()
        if not (is_asked_for or self._events.is_orphan or self._follows):
            what = self._console.said or f"ended with code {code}"
            self._note(self._failure(self._words.rank, code, what, traceback=self._worker.traceback))

    def _say_how_it_left(self, code: int) -> None:
        """The worker has ended by an exit of which it has not told, after the ranks had met."""
        if self._signals.has_ended_it:
            return
        if code == EXIT_OK:  # well, unless others wait for it, or MPI's launcher ends the job for it
            self._peers.tell(Returned(self.restarts.attempt, _SILENTLY))
        end = time.monotonic() + (_CAUSE if self._peers.are_reached else 0.0)
        while not (has_cause := self._has_a_cause()) and (left := end - time.monotonic()) > 0:
            self._events.wait(left)
            self._take_events()
        is_ended_for_it = self._signals.is_ended_by_launcher and not self._others.have_left_before(self._words.rank)
        if is_ended_for_it if code == EXIT_OK else not has_cause:
            self._console.say(f"ended with code {code}, {_SILENTLY}")

    def _has_a_cause(self) -> bool:
        """Whether it is known, and has been said, why this rank's worker ends."""
        return self._follows or self._hang.is_reported or self._is_ended_from_outside

    def _failure(self, rank: int, code: int | None, what: str, **more: str) -> Failure:
        step = self._worker.board.read().step
        return self._report.failure(rank, code, what, step=step, attempt=self.restarts.attempt, **more)

    def _note(self, failure: Failure) -> None:
        """Take a failure, if it is the first."""
        if self._report.first is None:
            present = set() if self._worker.is_everywhere else self._peers.present
            self._report.keep(failure, present - self.restarts.done - {failure.rank})
            if not self.restarts.is_possible:
                self._report.write()  # at once: Open MPI 5 kills the guards half a second after the first has ended

    def _remove_locks(self, worker: Worker) -> None:
        """Remove the locks that a worker has left which was killed. In a thread: a file system may hang."""
        if left := [Path(lock) for lock in worker.board.locks()]:
            thread = threading.Thread(target=remove_left, args=(left, worker.process), daemon=True)
            thread.start()
            thread.join(_WRITING)

    def _status(self) -> int | None:
        """The worker's exit status, if it has ended. Reaps the orphans that the guard has adopted."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self._worker.process:
                    return ended[1]
                self._nursery.lose(ended[0])
        return None
