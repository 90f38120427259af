"""A loop of one's own: the script computes the steps, and what ``fit`` does around them happens here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from torch import Tensor

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel import make_trainer
from runner.parallel.several import Several, check_stateful
from runner.parallel.task import Stateful, Task
from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.data.feeds import feed_of, with_batch_of
from runner.training.data.source import source_of
from runner.training.finite import check_finite
from runner.training.model import Model
from runner.training.places import owning
from runner.training.run import Run
from runner.training.same_task import check_task
from runner.training.settings import Settings
from runner.training.training import Training


class OwnLoop:
    """The models that a script has prepared, and its training once that has begun."""

    def __init__(self, run: Run, settings: Settings) -> None:
        self._run, self._settings = run, settings
        self._models: dict[str, Model] = {}
        self._own: dict[str, Stateful] = {}
        self._training: Training | None = None

    @property
    def position(self) -> Position:
        """How far the training is."""
        return Position() if self._training is None else self._training.position

    @property
    def is_last_of_epoch(self) -> bool:
        """Whether the batch is the epoch's last."""
        return self._training is not None and self._training.is_last_of_epoch

    def prepare(self, name: str, data: Any, loss: Any, **of_task: Any) -> Model:
        """See ``Run.prepare``. ``of_task``: fields of the model's ``Task``."""
        run, settings = self._run, self._settings
        self._check_before(f"prepare() of {name!r}")
        self._check_settings(name, loss, data)
        task = Task(
            loss=loss,
            batch_loss=None if loss else _no_loss,
            train_data=[] if data is None else data,
            is_classification=False,
            **of_task,
        )
        example = None if settings.pp == 1 else check_task(run, task, settings)["training"].batch
        trainer = make_trainer(task, run.setting(settings.dtype, settings, example))

        def check(loss: Tensor) -> None:
            check_finite(run, trainer, self.position, loss)

        made = Model(name, trainer, run.job, self._note_loss, check if settings.check_finite else None)
        self._models[name] = made
        return made

    def register(self, own: Mapping[str, Stateful]) -> None:
        """See ``Run.register``."""
        self._check_before("register()")
        check_stateful(own, "register")
        self._own.update(own)

    def batches(self, data: Any, collate_fn: Callable[[list[Any]], Any] | None) -> Iterator[Any]:
        """See ``Run.batches``."""
        self._check_before("batches()")
        run, settings = self._run, self._settings
        with raised_on_all_ranks():
            if not self._models:
                raise UsageError(
                    "batches() before prepare(): nothing is to be trained", fix="call run.prepare(model, …) first"
                )
        first = next(iter(self._models.values())).trainer.task
        with owning(run, settings) as see_that_own:
            task = replace(first, loss=None, batch_loss=_no_loss, train_data=data, collate_fn=collate_fn)
            source = replace(source_of(task), drop_last=True)  # the script's own mean over a batch weighs ranks alike
            settings = with_batch_of(source, settings)
            check_task(run, task, settings)
            trainer = Several(task, {name: one.trainer for name, one in self._models.items()}, self._own)
            self._training = training = Training(run, settings, feed_of(run, source, settings), trainer)
            if training.is_at_its_end:
                training.nothing_left()
                return
            with training.begun(see_that_own):
                for batch in training.batches():
                    yield batch.value
                    self._check_stepped(
                        "the batch is over, and {0} has had backward() without step()",
                        "call {0}.step() once for each batch, after one backward() or several",
                    )
            training.result()

    def finish_step(self) -> None:
        """See ``Run.save_if_due``."""
        training = self.training_in("save_if_due()")
        self._check_stepped("save_if_due() between backward() and step() of {0}", "call it after {0}.step()")
        training.finish_step()

    def _check_stepped(self, problem: str, fix: str) -> None:
        """A checkpoint holds no gradients, and a loop that has forgotten the step would train nothing."""
        for name, model in self._models.items():
            if model.has_gradients:
                raise UsageError(problem.format(name), fix=fix.format(name))

    def _note_loss(self, loss: Tensor) -> None:
        if self._training is not None:
            self._training.note_loss(loss)

    def training_in(self, what: str) -> Training:
        """Return the training; ``what``: the call that is an error outside of it."""
        if self._training is None:
            with raised_on_all_ranks():
                raise UsageError(f"{what} outside of the loop", fix="call it in: for batch in run.batches(data)")
        return self._training

    @raised_on_all_ranks()
    def _check_before(self, what: str) -> None:
        if self._training is not None:
            raise UsageError(
                f"{what} when the training has begun", fix="call it before run.batches(), which is called once"
            )

    @raised_on_all_ranks()
    def _check_settings(self, name: str, loss: Any, data: Any) -> None:
        settings = self._settings
        if name in self._models:
            raise UsageError(
                f"there is a model {name!r} already", fix="give each its own name: prepare(…, name='generator')"
            )
        if settings.loss_parallel:
            raise UsageError("--loss-parallel goes with run.fit only", fix="leave it out")
        if settings.weights is not None:
            raise UsageError(
                "--weights goes with run.fit only", fix="load them into the model before prepare() gets it"
            )
        if settings.micro_batches > 1 and settings.pp == 1:
            raise UsageError(
                f"--micro-batches {settings.micro_batches} in a loop of one's own",
                fix="leave it out, and accumulate gradients by: with model.accumulate()",
            )
        if settings.pp > 1 and (loss is None or data is None):
            raise UsageError(
                f"--pp {settings.pp}: prepare() without {'the loss' if loss is None else 'the data'}, which a pipeline needs",
                fix="say prepare(…, loss=F.cross_entropy, data=data), and call model.train_step(inputs, targets)",
            )


@raised_on_all_ranks()
def _no_loss(*_: Any) -> NoReturn:
    raise UsageError("train_step() without a loss", fix="give it to prepare(…, loss=F.cross_entropy)")
