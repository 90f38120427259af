"""A rank's guard: it watches one worker after the other, and carries out what the end of each means (see decision.py)."""

from __future__ import annotations

from runner.base.errors import EXIT_FAILURE, EXIT_OK
from runner.guard.decision import Decision
from runner.guard.ending import Ending
from runner.guard.link.messages import Failed
from runner.guard.process.child import Child
from runner.guard.process.worker import GRACE
from runner.guard.report.output import RankOutput
from runner.guard.settings import Watched, Words
from runner.guard.watch import OnHost, Watch
from runner.launch.hydra import end_other_ranks

_ROUND = 1.0  # seconds between two looks at the worker
_WRITING = 2.0  # seconds for what is still to be written, at the end


class Guard:
    """The guard of one rank."""

    def __init__(self, host: OnHost, words: Words, watched: Watched, output: RankOutput) -> None:
        self._host, self._words, self._output = host, words, output
        self._watch = Watch(host, words, watched, output)
        self.restarts, self._peers = self._watch.restarts, self._watch.peers
        self._console, self._events = self._watch.console, self._watch.events

    def watch(self, child: Child) -> Decision:
        """Watch a worker until it has ended. Returns what that means."""
        watch = self._watch
        attempt = watch.begin(child)
        worker = attempt.worker
        while (status := child.status) is None:
            watch.look()
            if worker.is_late():
                if worker.verdict is None and worker.rendezvous_at:
                    self._console.say("has not ended in time")
                elif worker.verdict is None:
                    attempt.meeting.say_that_it_is_late()
                if not worker.send_next_signal():
                    return self._conclude(None)
            self._events.wait(worker.left(_ROUND), *([] if worker.is_silent else [worker.messages]))
        watch.receive_from_worker()  # its last words
        if child.problem and worker.verdict is None:
            self._console.say(child.problem)
            worker.verdict = EXIT_FAILURE
        worker.has_ended = attempt.hang.has_ended = True
        attempt.busy.note(self._words.rank, is_busy=False)
        worker.group.end_if_empty(worker.process)
        return self._conclude(status)

    def starts_again(self, decision: Decision) -> bool:
        """Whether all ranks are started again after this one has ended. Tells the other guards."""
        attempt, report = self._watch.attempt, self._watch.report
        worker = attempt.worker
        if decision.is_first_failure:
            failure = self._watch.failure(self._words.rank, decision.code, decision.cause, traceback=worker.traceback)
            self._watch.note(failure)
        if decision.tells_failure:
            self._peers.tell(Failed(attempt=attempt.number, again=decision.starts_again, failure=report.first))
        self._end_group()
        if decision.starts_again:
            report.write(is_mended=True)
            self.restarts.next()
            self._console.say_once(f"all ranks start again ({self.restarts.attempt} of {self.restarts.most})")
            self._output.start_again()
        worker.close()
        return decision.starts_again

    def end_without_proxy(self) -> None:
        """The process that the launcher had started was killed: nobody takes an exit code. Within a few seconds."""
        worker = self._watch.attempt.worker
        self._end_group()
        worker.close()
        self._end("")

    def leave(self, decision: Decision) -> None:
        """Tell the others how this rank has ended, leave their link, and write what is left; within a few seconds."""
        state = self._watch.state
        if decision.ends_launch:
            end_other_ranks(
                self._host.origin.hydra, decision.code
            )  # Hydra has them wait for a rank that has not called MPI_Init()
        if state:
            state.end(decision.code, self._console.said, decision.ended_by)
        if decision.code != EXIT_OK:
            self._watch.report.write()
        self._end("")

    def _end_group(self) -> None:
        """End what the worker has left."""
        worker = self._watch.attempt.worker
        others = self._host.workers() - {worker.process}
        worker.group.end(worker.process, GRACE, self._host.importer()[0], others)

    def _end(self, why: str) -> None:
        """Leave the link, and write what is left. ``why``: this rank is gone."""
        self._peers.leave(why)
        self._output.close()
        if self._watch.files:
            self._watch.files.close(_WRITING)

    def _conclude(self, status: int | None) -> Decision:
        """Conclude what the worker's end means. ``status``: as waitpid() returns it; None: not even SIGKILL has ended the worker."""
        end = self._watch.attempt.end(status, self._watch.signals.passed_on)
        return Ending(self._watch, self._words, end).conclude()
