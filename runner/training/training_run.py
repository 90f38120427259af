"""What a script or a workload can do as a run: train by our loop or by its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from runner.parallel.task import OptimizerFactory, Plan, Stateful, Task
from runner.training.hooks.state import Hook
from runner.training.loop import fit
from runner.training.model import Model
from runner.training.own_loop import OwnLoop
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.summary import Result
from runner.training.workload import check_output


@dataclass(frozen=True, kw_only=True)
class TrainingRun(Run):
    """This rank's part of a job that trains. ``runner.start()`` returns it, and a workload's ``main`` gets it.

    A loop of one's own::

        model = run.prepare(Net(), optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
        for batch in run.batches(data):
            loss = F.cross_entropy(model(batch["image"]), batch["label"])
            model.backward(loss)
            model.step()
            run.log(loss=loss)

    It resumes, saves, is preempted, is watched and logs as ``run.fit`` does; all methods of the loop are collective.
    """

    @cached_property
    def _own(self) -> OwnLoop:
        return OwnLoop(self, self._settings)

    @property
    def _settings(self) -> Settings:
        own: Settings | None = self.settings
        return own or Settings().in_folder(self.workload).for_ranks(self.data_size)

    @property
    def step(self) -> int:
        """The number of steps that are done, by this run and those it resumes."""
        return self._own.position.step

    @property
    def epoch(self) -> int:
        """The number of epochs that are done."""
        return self._own.position.epoch

    @property
    def is_last_of_epoch(self) -> bool:
        """Whether the batch is the epoch's last, for what is done once per epoch."""
        return self._own.is_last_of_epoch

    def fit(
        self,
        task: Task,
        options: Settings | None = None,
        *,
        on_step: Sequence[Hook] = (),
        on_epoch: Sequence[Hook] = (),
    ) -> Result:
        """Train a task to its end by the runner's loop: see ``runner.training.loop.fit``. ``options``: others than ``settings``."""
        settings = options or self._settings
        check_output(self, settings)
        return fit(self, task, settings, on_step=on_step, on_epoch=on_epoch)

    def prepare(
        self,
        model: nn.Module | Callable[[], nn.Module],
        *,
        optimizer: OptimizerFactory,
        plan: Plan | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        data: Any = None,
        find_unused_parameters: bool = False,
        name: str = "model",
    ) -> Model:
        """Make a model ready for the settings' strategy and layout, before ``batches``. All ranks begin with rank 0's weights.

        Args:
            model: or a function that makes it, for one too large to be whole on every rank.
            optimizer: makes the optimizer of the parameters it is given, which may be shards: ``partial(AdamW, lr=1e-3)``.
            plan: where the model may be divided; ``ddp`` needs none.
            loss: (outputs, targets) → the mean over the batch, for ``train_step``.
            data: that ``batches`` will get, of (input, target); for a pipeline, whose stages are balanced by a sample of it.
            find_unused_parameters: under ``ddp`` and ``zero1``: a step may leave parameters without a gradient on some ranks.
            name: of a script's second model and further ones, each another.

        Raises:
            UsageError: the name is taken, the training has begun, or the strategy does not support the model.
        """
        return self._own.prepare(
            name,
            model=model,
            optimizer=optimizer,
            plan=plan or Plan(),
            loss=loss,
            data=data,
            find_unused_parameters=find_unused_parameters,
        )

    def register(self, **own: Stateful) -> None:
        """Keep objects in every checkpoint, by name, and restore them when the run resumes. Call it before ``batches``.

        Each has ``state_dict()`` of tensors, numbers, texts, lists and dicts, and ``load_state_dict()``; rank 0's state is saved,
        and restored on all ranks. Tensors that are sharded stay so.
        """
        self._own.register(own)

    def batches(self, data: Any, *, collate_fn: Callable[[list[Any]], Any] | None = None) -> Iterator[Any]:
        """This rank's batches of all epochs that are left, on its device; around each step what ``fit`` does, too.

        The first call of the iterator restores the checkpoint that ``resume`` names. Random numbers are seeded before each batch from
        seed, step and rank. After each step's work, when the next batch is asked for, metrics are written and a checkpoint is, if
        one is due. A loop that is left by ``break`` saves nothing; ``stop()`` ends it with a checkpoint.

        Args:
            data: as ``Task.train_data``.
            collate_fn: as ``Task.collate_fn``: makes a batch of a list of samples of a ``Dataset``.

        Raises:
            UsageError: nothing is prepared, the data cannot be shared among the ranks, or a batch ends without ``step()``.
            Preempted: a signal or the time limit has ended the training early; it is saved.
        """
        return self._own.batches(data, collate_fn)

    def log(self, **values: float | Tensor) -> None:
        """Note numbers of this step, which are written as their means over the ranks. ``loss`` is printed with each
        epoch, and so are those named ``val_…`` of its last step.

        All ranks log the same names in the same steps; without ``loss`` that of the step's first ``backward()`` is taken.
        """
        self._own.log(values)

    def save_if_due(self) -> None:
        """End the step's work here, not when the next batch is asked for: write metrics, and a checkpoint if one is due."""
        self._own.finish_step()

    def stop(self) -> None:
        """End the training after this step, with a checkpoint. One rank's call is enough."""
        self._own.stop()
