"""The run of a script or a workload: its job, and its training by the runner's loop or by its own."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from runner.backends.collective_errors import agree
from runner.backends.gpu import is_gpu
from runner.backends.process_group import with_host_memory
from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.job import Job
from runner.parallel import Setting
from runner.parallel.mesh import Layout, device_mesh
from runner.parallel.precision import named
from runner.parallel.settings import ParallelSettings
from runner.parallel.task import OptimizerFactory, Plan, Stateful, Task
from runner.training.settings import Settings
from runner.versions.extras import problem_of

if TYPE_CHECKING:
    from runner.training.model import Model
    from runner.training.own_loop import OwnLoop
    from runner.training.summary import Hook, Result

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Run:
    """This rank's part of a job that trains. ``runner.start()`` returns it, and a workload's ``main`` gets it.

    A loop of one's own::

        model = run.prepare(Net(), optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
        for batch in run.batches(data):
            loss = F.cross_entropy(model(batch["image"]), batch["label"])
            model.backward(loss)
            model.step()
            run.log(loss=loss)

    The process group is initialised. Such a loop resumes, saves, is preempted, is watched and logs as ``run.fit`` does; all
    methods of the loop are collective.
    """

    job: Job
    workload: str  # the module's name
    layout: Layout  # which rank has which part of the model and the data
    settings: Any = None  # a ``Settings``, where the workload takes one, or the script has said them
    # Set by a tool that trains the task itself; called with (run, task, options) in the place of the training.
    train_by: Callable[[Run, Any, Any], Any] | None = None
    # For decisions that all ranks have to take alike, such as which layers a step leaves out: fit() seeds it by seed and step.
    common_random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311  # no secret

    @property
    def rank(self) -> int:
        return self.job.rank

    @property
    def size(self) -> int:
        return self.job.size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that prints and writes."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        return torch.device(self.job.placement.torch_device)

    @property
    def data_rank(self) -> int:
        """The index of this rank's share of the samples, from 0. Ranks that share one model replica have the same."""
        return self.layout.data_rank(self.rank)

    @property
    def data_size(self) -> int:
        """The number of shares that the samples are divided into."""
        return self.layout.degrees.data

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The layout as torch's device mesh: the dimension ``data``, and others if there are any. Collective."""
        return device_mesh(self.layout, self.device.type)

    @cached_property
    def host_group(self) -> dist.ProcessGroup | None:
        """A group of all ranks for numbers in the host's memory; None: the default group takes them. Collective at first."""
        group: dist.ProcessGroup | None = None
        if is_gpu(self.device):
            group = dist.new_group(backend="gloo")  # type: ignore[assignment]  # all ranks are members
        return group

    def setting(self, dtype: str | None, options: ParallelSettings, example: Any = None) -> Setting:
        """Return where and how a strategy is to train here. Collective.

        Args:
            example: a batch of the data, on which a pipeline measures its layers.
        """
        mesh, backend = self.mesh, with_host_memory(self.job.backend)
        if options.offload == "cpu" and backend != self.job.backend:  # gradients are not on the GPU
            mesh = device_mesh(self.layout, self.device.type, backend)
        return Setting(device=self.device, dtype=named(dtype), mesh=mesh, options=options, example=example)

    def group(self, dimension: str = "data") -> dist.ProcessGroup:
        """This rank's process group along a dimension of the mesh."""
        return self.mesh.get_group(dimension)

    def print(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self.is_main:
            print(text, flush=True)

    def sum(self, *numbers: float, dimension: str | None = "data") -> list[float]:
        """Return the sums of these numbers over the ranks, in double precision. Collective.

        Args:
            dimension: of the mesh, along which ranks add; None: all ranks of the job.
        """
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=None if dimension is None else self.group(dimension))
        return total.tolist()

    def on_main(self, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
        """Call ``work`` on rank 0, and return its result on all ranks of the job. Collective.

        Args:
            group: of all ranks, for a thread that has its own.

        Raises:
            RunnerError: rank 0 raised it or a subclass; all ranks raise the same.
        """
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer[0] = work()
            except RunnerError as error:
                error.on_all_ranks = True
                answer[1] = error
        if self.size > 1:
            dist.broadcast_object_list(answer, src=0, group=group, device=None if group else self.device)
        if answer[1] is not None:
            raise answer[1]
        result: T = answer[0]
        return result

    def gather(self, value: T, group: dist.ProcessGroup | None = None) -> list[T] | None:
        """Return every rank's value on rank 0, None elsewhere; ``group``: of all ranks, for a thread. Collective."""
        found: list[Any] | None = [value] * self.size if self.is_main else None
        if self.size > 1:
            dist.gather_object(value, found, dst=0, group=group)
        return found

    def scatter(self, values: Sequence[T] | None, group: dist.ProcessGroup | None = None) -> T:
        """Return this rank's value of those that rank 0 has; ``group``: of all ranks, for a thread. Collective."""
        own: list[Any] = [values[0] if values else None]
        if self.size > 1:
            dist.scatter_object_list(own, None if values is None else list(values), src=0, group=group)
        value: T = own[0]
        return value

    def load(self, package: str, *, needed_by: str = "") -> Any:
        """Import a package that not every installation has. Collective.

        Args:
            needed_by: what needs it here; "": this workload.

        Raises:
            UsageError: on a rank it is not installed, or does not load.
        """
        self.agree(problem_of(package, needed_by or self.workload))
        return importlib.import_module(package)

    agree = staticmethod(agree)  # raises on all ranks of the job if any of them has a problem

    @contextmanager
    def agreeing(self, kind: type[RunnerError] = UsageError, group: dist.ProcessGroup | None = None) -> Iterator[None]:
        """A context after which all ranks of the job raise a problem, of this kind, that any of them has raised. Collective."""
        problem: RunnerError | None = None
        try:
            yield
        except RunnerError as error:
            problem = error
        self.agree(problem, kind, group)

    @cached_property
    def _own(self) -> OwnLoop:
        from runner.training.own_loop import OwnLoop

        if self.train_by is not None:
            with raised_on_all_ranks():
                raise UsageError(
                    f"{self.workload} has a loop of its own, and this tool trains a task itself",
                    fix="give its model, loss and data to run.fit(runner.Task(…)), or measure the program as it is: scale",
                )
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
        from runner.training.loop import fit

        return fit(self, task, options or self._settings, on_step=on_step, on_epoch=on_epoch)

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
        of_task = {"optimizer": optimizer, "plan": plan or Plan(), "find_unused_parameters": find_unused_parameters}
        return self._own.prepare(name, data, loss, model=model, **of_task)

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
        self._own.training_in("log()").log(values)

    def save_if_due(self) -> None:
        """End the step's work here, not when the next batch is asked for: write metrics, and a checkpoint if one is due."""
        self._own.finish_step()

    def stop(self) -> None:
        """End the training after this step, with a checkpoint. One rank's call is enough."""
        self._own.training_in("stop()").stop()
