"""The watch of a running worker: reports of the worker, the launcher and the other guards."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from runner.base.errors import EXIT_FAILURE, EXIT_HANG, EXIT_OK
from runner.guard.attempt import WorkerAttempt
from runner.guard.hang.stacks import catches
from runner.guard.link.link import Address, Link
from runner.guard.link.messages import Apart, Busy, Done, Ends, Failed, Gone, HostName, Hung, Message, Patient, Returned
from runner.guard.link.peers import Peers, Restarts
from runner.guard.process.events import Events, name_of
from runner.guard.process.lifeline import Computes, Fails, Leaves, Met, Seeks
from runner.guard.process.proxy import STOP_SIGNALS
from runner.guard.process.worker import Worker
from runner.guard.report.console import Console, Files, RankOutput, described
from runner.guard.report.failure import Failure, Report
from runner.guard.report.rank_state import StateFile
from runner.guard.settings import Origin, Watched, Words
from runner.hardware.nvml import GpuMeter

_ORPHANED_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL where the launcher has ended
# Seconds that a worker gets after another rank has failed: before SIGTERM, or SIGKILL in a training.
_FOLLOW_SECONDS = 1.0
_STOP_SECONDS = 0.3  # seconds in which all guards have stopped their workers, after a hang was reported
# Seconds that Ctrl-C gives ranks: one that waits for another in C does not notice it. A script may save by itself.
_INTERRUPTED_SECONDS, _SCRIPT_INTERRUPTED_SECONDS = 5.0, 10.0
_ASK_TO_SAVE = (signal.SIGTERM, signal.SIGUSR1)


class Watch:
    """Watches one worker after the other. ``attempt`` is what is known of the one that runs."""

    attempt: WorkerAttempt

    def __init__(
        self, origin: Origin, events: Events, link: Link, words: Words, watched: Watched, output: RankOutput
    ) -> None:
        self.words, self._watched, self.events = words, watched, events
        self.console = Console(words, watched.launcher(), output, origin)
        complain = self.console.complain if watched.is_first_on_host else None
        self.files = Files(complain) if watched.log_folder else None
        output.pass_on(self.files)
        self.report = Report(words, watched, self.files)
        self.signals = Signals(self.console, words, watched, self._say_before_a_signal, ignored=origin.ignored)
        self.restarts = Restarts(watched.restarts, words.rank, words.size)
        self.peers = Peers(words.rank, link, self.events, self.restarts)
        self.state = StateFile(watched, self.files) if self.files else None

    def begin(self, worker: Worker) -> WorkerAttempt:
        """Turn to a new worker."""
        hosts, number = self.report.hosts, self.restarts.attempt
        self.attempt = WorkerAttempt(
            worker, number, self.words, self._watched, console=self.console, peers=self.peers, hosts=hosts
        )
        self.report.start_again()
        self.console.said = ""
        self.receive_from_others()  # what they have said of this attempt before
        return self.attempt

    def write_states(self) -> None:
        """Write the worker's state from now on, once it is forked."""
        if self.state:
            self.state.begin(self.attempt.worker.board, self.attempt.worker.process)

    def look(self) -> None:
        """Look at the worker and at all that has been told."""
        self.receive_from_worker()
        self.take_events()
        attempt, worker = self.attempt, self.attempt.worker
        if worker.verdict is not None:
            return
        if worker.rendezvous_at is not None:
            self.signals.give_notice_when_due(worker)
        reason = attempt.lost()
        if not self.peers.is_hub:
            self.peers.tell(reason)
        attempt.busy.note(self.words.rank, is_busy=attempt.patience.is_busy and not attempt.hang.is_own)
        attempt.busy.forget_silent()
        self.look_for_a_hang()
        attempt.meeting.look()

    def look_for_a_hang(self) -> None:
        """Report a hang once its report is complete, and end the worker for it."""
        hang = self.attempt.hang
        text = hang.look(self.peers, self.report.hosts)
        if text:
            what, _, shown = text.partition("\n")
            failure = self.failure(hang.late[0], EXIT_HANG, what, stacks=shown)
            # First: what takes the output may be stopped, too.
            if self.peers.is_hub:
                self.peers.tell(Hung(failure))
            self._end_hung()
            step = self.attempt.worker.board.read().step
            self.console.say(text, fix=hang.fix(self.words.how_to_resume if step else ""), is_named=False)
            self.note(failure)

    def receive_from_worker(self) -> None:
        """Take what the worker has told."""
        worker = self.attempt.worker
        for message in worker.received():
            match message:
                case Seeks():
                    worker.has_started = True
                case Met():
                    worker.complete_rendezvous()
                    self.signals.bound_interrupted(worker)
                    if message.address:
                        self._join(message.address)
                case Computes():
                    if self.state:
                        self.state.gpu = GpuMeter(message.gpu)
                case Leaves():
                    worker.has_said = True
                    if message.code == EXIT_OK:
                        self.peers.tell(Returned(self.restarts.attempt, ""))
                case Fails():
                    self.console.said = message.why
                    worker.has_failed(message)
                    self._tell_before_the_launcher_kills(message)
                    if message.everywhere:
                        self.peers.tell(Ends(message.code, message.why))

    def take_events(self) -> None:
        """Take the signals that have come, the launcher's end, and the other guards' messages."""
        worker, known = self.attempt.worker, self.signals.first_end
        for event in self.events.signals():
            self.signals.take(worker, *event)
        if self.state and self.signals.first_end and not known:
            self.state.note(*self.signals.first_end)
        if self.events.has_lost_proxy and not self.attempt.is_without_proxy:  # nobody takes the exit code
            self.attempt.is_without_proxy = True
            # At once: the launcher ends the other ranks, too, and they are to know why.
            self.peers.tell(Gone("the process that its launcher had started was killed"))
            worker.end(EXIT_FAILURE, 0.0)
        if self.events.has_lost_launcher() and not self.attempt.is_without_proxy:
            worker.end(EXIT_FAILURE, _ORPHANED_SECONDS)
            worker.signal(signal.SIGTERM)
            self.console.say("the launcher has ended without its ranks, so this one ends too")
        self.receive_from_others()

    def receive_from_others(self) -> None:
        """Take the other guards' messages."""
        for rank, message in self.peers.received():
            self._take(rank, message)

    def say_for_another(self) -> None:
        """Print why all ranks end, where the rank that knows it does not."""
        if not self.attempt.worker.is_everywhere:
            self.attempt.others.say_why()

    def failure(self, rank: int, code: int | None, what: str, **more: str) -> Failure:
        """Return a failure that this guard notices."""
        return Failure(
            rank=rank,
            host=self.report.hosts.get(rank),
            exit_code=code,
            what=what,
            step=self.attempt.worker.board.read().step or None,
            time=time.time(),
            attempt=self.restarts.attempt,
            **more,
        )

    def note(self, failure: Failure) -> None:
        """Take a failure, if it is the first."""
        if self.report.first is None:
            present = set() if self.attempt.worker.is_everywhere else self.peers.present
            self.report.keep(failure, present - self.restarts.done - {failure.rank})
            if not self.restarts.is_possible:
                self.report.write()  # at once: Open MPI 5 kills the guards half a second after the first has ended

    def _tell_before_the_launcher_kills(self, message: Fails) -> None:
        """Tell how the worker ends where its launcher ends the job: it may kill this guard next."""
        if not self.signals.is_ended_by_launcher:
            return
        if message.why and self.words.is_reporting:
            self.console.repeat(message.why)
        if self.state:
            self.state.end(message.code, message.why, message.signal)

    def _join(self, address: Address) -> None:
        """Join the link of the guards: after the first rendezvous."""
        if self.peers.join(address, self._watched.names.get("host")):
            self.report.hosts[0] = address.name

    def _take(self, rank: int, message: Message) -> None:
        """Take a message of another guard."""
        attempt = self.attempt
        match message:
            case Failed():
                self._follow(rank, message.failure, again=message.again)
            case Gone():
                self._follow(rank, self.failure(rank, None, message.why), gone=message.why)
            case Returned():
                attempt.worker.board.note_end(rank)
                attempt.others.has_returned(rank, message)
                if self.signals.is_ended_by_launcher:
                    attempt.others.say_who_left(self.peers.present)
            case Done():
                self.restarts.done.add(rank)
            case Hung():
                attempt.hang.is_reported = True
                self._end_hung()
                self.note(message.failure)
            case Busy():
                attempt.busy.note(rank, is_busy=message.is_busy)
            case Patient():
                attempt.patience.others_are_busy = message.is_needed
            case Ends():
                attempt.others.end(rank, message)
            case HostName():
                self.report.hosts[rank] = message.name
            case Apart():
                if self._watched.is_first_on_host:
                    self.console.complain(
                        f"the ranks of this host do not reach rank 0's host at {message.why}, so only the launcher ends them if "
                        "another rank fails; a firewall may block it"
                    )
            case _:
                self.peers.tell(attempt.hang.take(rank, message))

    def _say_before_a_signal(self, is_launchers: bool) -> None:
        """Print why the job is ended, if another guard has told that."""
        if is_launchers:
            self.attempt.others.say_who_left(self.peers.present)
        self.say_for_another()

    def _follow(self, rank: int, failure: Failure | None, *, again: bool = False, gone: str = "") -> None:
        """End this rank, too, as another one has failed or its guard is gone."""
        worker, restarts = self.attempt.worker, self.restarts
        restarts.is_possible = restarts.is_possible and again
        if worker.verdict is None or restarts.is_possible:
            self.attempt.follows = True
        if failure:
            self.note(failure)
        if worker.verdict is None:
            if gone and self.state:
                self.state.lost(rank)
            # Rank 0 reports what concerns all, and another one where it cannot.
            is_next = self.words.rank == 1 or self._watched.is_first_on_host
            if gone and (self.words.is_reporting if rank else is_next):
                host = self.report.hosts.get(rank)
                named = f"rank {rank} on host {host}" if host else f"rank {rank}"
                self.console.say(f"{named} is gone: {gone}; so this rank ends too", last=True)
            # The training loop only notes SIGTERM, to save with all ranks: they are no longer there.
            progress = worker.board.read()
            signals = [] if progress.is_in_training and progress.phase != "saving" else [signal.SIGTERM]
            worker.end(EXIT_FAILURE, 0.0 if restarts.is_possible else _FOLLOW_SECONDS, *signals)

    def _end_hung(self) -> None:
        """Stop the worker, and kill it when all are stopped.

        An MPI that sees another rank's end would end the job by a code of its own.
        """
        self.attempt.worker.signal(signal.SIGSTOP)
        self.attempt.worker.end(EXIT_HANG, _STOP_SECONDS)


class Signals:
    """The signals that were passed on, and the time that the worker gets for each."""

    def __init__(
        self,
        console: Console,
        words: Words,
        watched: Watched,
        before_telling: Callable[[bool], None],
        *,
        ignored: Collection[int] = (),
    ) -> None:
        """Remove the file of ``--on-preempt`` that an earlier job has left. Call before the fork.

        Args:
            before_telling: called before it is printed who ends this rank, with whether that is the launcher.
            ignored: signals that the worker ignores from its start, as under nohup.
        """
        self._console, self._watched, self._before_telling = console, watched, before_telling
        self._is_alone, self._ignored, self._notice = words.size == 1, set(ignored), watched.notice
        self._told = 0  # the worker that was told before its time limit
        self._near_at = None if watched.notice_within is None else time.monotonic() + watched.notice_within
        if words.rank == 0 and isinstance(self._notice, Path):
            with contextlib.suppress(OSError):
                self._notice.unlink()
        self.passed_on: set[int] = set()
        self.is_ended_by_launcher = False
        self.first_end: tuple[str, str] | None = None  # who ends the job by a signal, and its name

    @property
    def has_ended_it(self) -> bool:
        """Whether a signal that ends jobs has come."""
        return bool(self.passed_on.intersection(STOP_SIGNALS))

    def take(self, worker: Worker, number: int, sender: int, code: int) -> None:
        """Take a signal to the proxy. ``code``: si_code, above 0 if the kernel has sent it."""
        if code > 0 and not worker.leads and worker.process:
            return  # the terminal has sent it to the whole group, and so to the worker
        is_new = number not in self.passed_on
        self.passed_on.add(number)
        is_notice = number in _ASK_TO_SAVE and self._is_listening(worker)
        if not is_notice or number == self._notice:
            worker.signal(number)
        elif is_new or number == signal.SIGUSR1:
            self._give_notice(worker)
        if is_new and number in STOP_SIGNALS and number not in self._ignored and worker.verdict is None:
            self.is_ended_by_launcher = self._console.is_launchers(sender)
            self.first_end = self.first_end or (f"{name_of(number)} from {described(sender)}", name_of(number))
            self._before_telling(self.is_ended_by_launcher)
            self._console.say_ended(name_of(number), sender, has_trained=worker.board.read().step > 0)
            if number == signal.SIGTERM and is_notice:  # the worker has not got it yet
                worker.let_save(number, within=self._watched.script_saves_within)
            elif number == signal.SIGTERM and worker.board.read().is_in_training:
                worker.let_save()
            elif number == signal.SIGINT and worker.board.read().is_in_training:
                worker.end(128 + signal.SIGINT, _INTERRUPTED_SECONDS)
            elif worker.rendezvous_at:
                self.bound_interrupted(worker)

    def bound_interrupted(self, worker: Worker) -> None:
        """Bound the time of a worker that has met others, if SIGINT has come."""
        if signal.SIGINT in self.passed_on - self._ignored and not self._is_alone:
            worker.let_end(128 + signal.SIGINT, _SCRIPT_INTERRUPTED_SECONDS)

    def give_notice_when_due(self, worker: Worker) -> None:
        """Tell a script to save if its time limit is near; once for each worker."""
        is_near = self._near_at is not None and time.monotonic() >= self._near_at
        if is_near and worker.process != self._told and self._is_listening(worker):
            self._told = worker.process
            self._console.say_once("the time limit is near: the script is told to save")
            self._give_notice(worker)

    def _give_notice(self, worker: Worker) -> None:
        if isinstance(self._notice, Path):
            try:
                self._notice.touch()
            except OSError as error:
                self._console.say(f"--on-preempt: cannot create {self._notice}: {error.strerror}")
        elif self._notice is not None:
            worker.signal(self._notice)

    def _is_listening(self, worker: Worker) -> bool:
        """Whether the script would take the notice by now: a signal without a handler would end it."""
        way = self._notice
        return bool(worker.rendezvous_at) and (
            isinstance(way, Path) or (way is not None and catches(worker.process, way))
        )
