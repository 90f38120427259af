"""A training from its first step to its last, whoever computes the steps."""

from __future__ import annotations

import functools
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import Tensor

from runner.base.command_name import COMMAND
from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.parallel.modes import begin_training, modes_kept
from runner.parallel.several import Several, with_own_state
from runner.parallel.trainer import Trainer
from runner.parallel.trees import to_device
from runner.training.checkpoint.checkpoint_folder import Position, name_of
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.checkpoint.resume import restore, settings_of
from runner.training.data.feed import Batch, Feed, load_states, states_of
from runner.training.data.random_numbers import seed_random_numbers
from runner.training.evaluation import Evaluation, evaluate
from runner.training.metrics.output import open_output
from runner.training.metrics.profile import profiled
from runner.training.metrics.progress import show_progress
from runner.training.metrics.sinks import StepRecord
from runner.training.preemption import Preemption, end_early, listening
from runner.training.replicas import Replicas
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.step_metrics import StepMetrics, logged_number
from runner.training.summary import Hook, Result, State, epoch_line, evaluation_texts, resumed_text, step_line, summary

_OF_LINES = {"step", "format"}


class Training:
    """Gives the batches of all steps that are left, and does what is around each step: seeds, metrics, checkpoints, evaluation.

    Attributes:
        position: how far the training is; whoever computes a step does not change it.
        last_step: of the whole training; None if that is not known.
        loss: of the step that is computed, which whoever computes it sets: a detached scalar of this rank.
        evaluation: the newest one.
    """

    loss: Tensor | None = None
    evaluation: Evaluation | None = None
    _replicas: Replicas | None = None
    _checkpoints: Checkpoints
    _metrics: StepMetrics
    _preemption: Preemption
    _step: Callable[[], AbstractContextManager[None]]
    _batch: Batch

    def __init__(
        self,
        run: Run,
        options: Settings,
        feed: Feed,
        trainer: Trainer,
        *,
        on_step: Sequence[Hook] = (),
        on_epoch: Sequence[Hook] = (),
    ) -> None:
        """Restore the checkpoint that the options name, if any. Collective.

        Raises:
            UsageError: the checkpoint is damaged or does not fit.
        """
        self._run, self._task, self._options, self._trainer = run, trainer.task, options, trainer
        self._feed, self._on_step, self._on_epoch = feed, on_step, on_epoch
        self._settings = settings_of(run, options, trainer)
        self._whole = with_own_state(trainer)
        self._whole.check_state()  # refuses a state that cannot be saved now, not after an epoch
        self.saved, self._changes = restore(run, self._whole, options, self._settings)
        self.position = self.saved.position if self.saved else Position()
        self._first_step = self.position.step + 1  # of this run
        self.last_step = _last_step(self.position, feed, options)
        self._state = State(trainer.model, trainer.optimizer, self.position, stop=self.stop)
        # Every so many steps the ranks agree on whether the program, by a hook or a loop of its own, stops the training.
        self._agree_every = trainer.period if on_step or isinstance(trainer, Several) else 0
        self._is_done = True  # the step whose batch was given last
        self._fresh = True  # it has no loss yet
        self._epoch_is_over = False

    @property
    def is_last_of_epoch(self) -> bool:
        """Whether the batch is the epoch's last, or the training's."""
        return self._epoch_is_over or self.position.step + (not self._is_done) == self.last_step

    @property
    def is_at_its_end(self) -> bool:
        """Whether the checkpoint is that of the last step."""
        return self.saved is not None and not self._has_steps_left

    @property
    def _has_steps_left(self) -> bool:
        position, options = self.position, self._options
        return position.epoch < options.epochs and position.step < (options.max_steps or math.inf)

    @contextmanager
    def begun(self, see_that_own: Callable[[], None]) -> Iterator[None]:
        """A context of the training, which writes the last checkpoint at its end. Collective.

        Args:
            see_that_own: called on rank 0 before anything is written; raises a RunnerError if the folder is another run's now.
        """
        run, options, trainer = self._run, self._options, self._trainer
        if self.saved:
            run.print(resumed_text(self.saved, options, self._changes))
            load_states(run, self._feed, self.saved.data)
        states = functools.partial(states_of, run, self._feed)
        self._checkpoints = checkpoints = Checkpoints(
            run, self._whole, options, self._settings, self.saved, see_that_own, states
        )
        if options.check_replicas:
            self._replicas = Replicas(run, trainer)
        trainer.on_progress = run.job.board.go_on
        done, steps = self.position.step, self.last_step

        def leave_out(seconds: float) -> None:
            self._metrics.leave_out(seconds)

        self._step = profiled(run, options, (steps or sys.maxsize) - done, leave_out, lambda: self.is_last_of_epoch)
        with ExitStack() as stack:
            # On a GPU a step is only launched: the metrics wait for the device.
            stack.enter_context(run.job.board.training(1 if run.device.type == "cpu" else sys.maxsize))
            file, loggers = open_output(run, options, self.saved, checkpoints, stack)
            progress = show_progress(visible=run.is_main, epochs=options.epochs, steps=steps, done=done)
            show = stack.enter_context(progress)
            self._metrics = StepMetrics(run, options, trainer, self.position, steps, checkpoints, show, file, loggers)
            self._preemption = stack.enter_context(listening(run, checkpoints))
            yield
            checkpoints.end(self.position)

    def batches(self) -> Iterator[Batch]:
        """Yield this rank's batches of all steps that are left, on its device. A step is done when the next batch is asked for."""
        run, options, position, metrics = self._run, self._options, self.position, self._metrics
        device, dtype = run.device, self._trainer.dtype
        # An epoch of which no whole batch is left has no step, and ends as others do.
        while self._has_steps_left:
            begin_training(self._trainer.roots)
            metrics.begin_epoch()
            seed_random_numbers(options.seed, position.step, run.data_rank, device)  # for the loader's processes
            batches = self._feed.batches(position.epoch, position.samples)
            self._epoch_is_over = self._feed.steps(position.samples) == 0
            while self._has_steps_left and not self._epoch_is_over:
                with self._step():
                    seed_random_numbers(options.seed, position.step, run.data_rank, device)
                    run.common_random.seed(f"{options.seed} {position.step}")
                    metrics.begin_step()
                    if (batch := next(batches, None)) is None:  # of a resumed stream nothing is left
                        self._epoch_is_over = True
                        break
                    self._batch = batch._replace(value=to_device(batch.value, device, dtype))
                    metrics.see(self._batch.value)
                    self._is_done, self._fresh, self._epoch_is_over = False, True, batch.is_last
                    yield self._batch
                    self.finish_step()
                if self._preemption.is_stopped:
                    return
            self._end_epoch()
            if self._preemption.is_stopped:
                return

    def finish_step(self) -> None:
        """Do what follows a step that is computed. Does nothing if it was called before in this step. Collective."""
        if not self._is_done:
            is_last, loss = self.is_last_of_epoch, self.loss
            if loss is None:
                raise UsageError(
                    "a step without a loss", fix="call model.backward(loss), or run.log(loss=…), for each batch"
                )
            self._is_done, position, self.loss = True, self.position, None
            position.step, position.samples = position.step + 1, self._batch.used
            self._metrics.add(loss, self._batch.all_samples)
            self._call(self._on_step, "step hook")
            if self._replicas and position.step % (self._options.check_replicas or 1) == 0:
                self._replicas.check(position.step)
            if position.step == self._first_step:
                self._whole.check_state()  # the optimizer has a state now: refuse one that cannot be saved
            if not is_last:  # else metrics and checkpoints follow after the evaluation
                self._end_step()

    def _end_step(self) -> None:
        """Evaluate, or write metrics, in the middle of an epoch; save if that is due. Collective."""
        step, evaluate_every, metrics = self.position.step, self._task.evaluate_every, self._metrics
        if evaluate_every and step % evaluate_every == 0:
            records = self._evaluate()
            if self.evaluation is not None:
                metrics.show.line(step_line(records[-1], self._task))
            metrics.start()  # leaves out the pause
            self._run.job.board.enter("warm-up")  # a compiled model has been in evaluation mode
        else:
            metrics.write_if_due()
        self._save_if_due(now=self._agree_every > 0 and step % self._agree_every == 0)

    def _end_epoch(self) -> None:
        """Evaluate at the end of an epoch, or of the part that this run trains; save if that is due. Collective."""
        position, metrics = self.position, self._metrics
        if records := self._evaluate():
            metrics.show.line(epoch_line(self._options.epochs, records[-1], metrics.of_epoch, self._task))
        if self._epoch_is_over:
            position.epoch, position.samples = position.epoch + 1, 0
        self._call(self._on_epoch, "epoch hook")
        self._save_if_due(now=True, epoch_is_over=self._epoch_is_over)

    def _evaluate(self) -> list[StepRecord]:
        """Evaluate, and write the records since the last ones, the last of them with the evaluation. Collective.

        There is no evaluation without test data, or if the training is to end before it would be over.
        """
        self.evaluation, records = None, self._metrics.gather()
        self._run.job.board.enter("evaluating")
        self._preemption.agree(now=True)
        if self._preemption.reason is None:
            self.evaluation = evaluate(self._run, self._trainer, self._options, self._preemption.ends)
        if self.evaluation is not None and records:
            records[-1].val_loss, records[-1].val_accuracy = self.evaluation.loss, self.evaluation.accuracy
            records[-1].more |= {f"val_{name}": value for name, value in self.evaluation.metrics.items()}
        self._metrics.write(records)
        if self.evaluation is not None:
            self._checkpoints.see_evaluation(self.evaluation)
        return records

    def _save_if_due(self, *, now: bool, epoch_is_over: bool = False) -> None:
        """Save if a checkpoint is due, and end the training early if a rank is asked to. Collective.

        Args:
            now: the ranks agree at once on what each is asked to do.
            epoch_is_over: all of the epoch's steps are done, not only those that ``--max-steps`` allows.

        Raises:
            Preempted: the training ends early; it is saved.
        """
        position, checkpoints, preemption = self.position, self._checkpoints, self._preemption
        is_due = preemption.agree(now=now) or checkpoints.is_due(position, epoch_is_over=epoch_is_over)
        if is_due or preemption.reason or preemption.is_stopped:  # each leads to a checkpoint
            self._metrics.write_rest()
        if is_due:
            checkpoints.save(position)
            self._metrics.start()
            preemption.agree(now=True)  # now it is known how long that takes
        is_at_end = position.epoch >= self._options.epochs or position.step == self.last_step
        is_evaluated = self.evaluation is not None or self._task.test_data is None
        if preemption.reason and not (is_at_end and is_evaluated):
            end_early(self._run, checkpoints, position, preemption.reason)

    def _call(self, hooks: Sequence[Hook], phase: str) -> None:
        if not hooks:
            return
        self._state.records = self._metrics.newest
        # A hook that evaluates may leave the model in evaluation mode; one that freezes a part means it.
        with self._run.job.board.during(phase), modes_kept(self._trainer.roots, if_evaluating=True):
            for hook in hooks:
                hook(self._state)

    def note_loss(self, loss: Tensor) -> None:
        """Note a loss of this step: the first counts, until one is logged by its name."""
        if self._fresh:
            self.loss, self._fresh = loss, False

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Note numbers of this step, in the place of others of the same names.

        Raises:
            UsageError: a name is one that a line of the metrics has for itself.
        """
        for name in _OF_LINES & values.keys():
            raise UsageError(f"run.log({name}=…): each line of the metrics has its own {name}", fix="name it otherwise")
        self._metrics.note({name: value for name, value in values.items() if name != "loss"})
        if "loss" in values:
            self.loss, self._fresh = logged_number("loss", values["loss"], self._run.device), False

    def stop(self) -> None:
        """End the training after this step, with a checkpoint. One rank's call is enough."""
        self._preemption.stop()

    def result(self) -> Result:
        """Return the result of the training, and print it on rank 0."""
        step = self.position.step
        result = Result(step, self._metrics.overall(), *(self.evaluation or (None, None, {})))
        checkpoint = self._options.checkpoint_dir / name_of(step)
        best = self._checkpoints.best_text
        text = summary(self._run, result, self._task, self._options, checkpoint)
        text = f"{text}\nbest        {best}" if best else text
        if not self._options.checkpoint_dir.name.startswith("."):  # a hidden one is smoke's, which removes it
            text += f"\nreport      {COMMAND} report {shlex.quote(str(self._options.checkpoint_dir))}"
        self._run.print(text)
        return result

    def nothing_left(self) -> Result:
        """Evaluate a training that is at its end, and print on rank 0 that no step is left. Collective.

        Raises:
            RunnerError: its loss was not finite.
        """
        run, options, position = self._run, self._options, self.position
        assert self.saved is not None
        with raised_on_all_ranks():
            if not self.saved.finite:
                raise RunnerError(
                    f"nothing is left to do, and the loss of {self.saved.path} was not finite",
                    fix="continue from an earlier checkpoint with --resume CHECKPOINT and a smaller --lr, or other data",
                )
        with run.job.board.training():
            self.evaluation = evaluate(run, self._trainer, options)
        result = Result(position.step, 0.0, *(self.evaluation or (None, None, {})))
        texts = ", ".join(evaluation_texts(result, self._task))
        at, option = f"epoch {position.epoch} of {options.epochs}", "--epochs"
        if position.epoch < options.epochs:
            at, option = f"step {position.step} of {options.max_steps}", "--max-steps"
        run.print(
            f"nothing left to do: {self.saved.path} is at {at}{f' ({texts})' if texts else ''}; to continue, give a larger {option}"
        )
        return result


def _last_step(position: Position, feed: Feed, options: Settings) -> int | None:
    """The number of the last step of the training; None if the data's length is not known and no number is given."""
    here, whole = feed.steps(position.samples), feed.steps(0)
    if here is None or whole is None:
        return options.max_steps
    last = position.step + here + (options.epochs - position.epoch - 1) * whole
    return min(last, options.max_steps or last)
