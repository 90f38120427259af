"""Several models that are trained together, such as the two of a GAN, and a script's own state, as one state for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.json_codec import decode, encode, renamed
from runner.parallel.state import StateDict
from runner.parallel.task import Stateful, Task
from runner.parallel.trainer import Trainer

_OWN = "own"  # begins the names of what a script has registered


@raised_on_all_ranks()
def check_stateful(own: Mapping[str, Any], what: str) -> None:
    """Refuse what cannot be saved and restored. ``what``: who has given it, such as ``register``."""
    for name, one in own.items():
        if not (callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))):
            raise UsageError(
                f"{what}({name}=…): a {type(one).__name__} has no state_dict() and load_state_dict()",
                fix="give it both, of tensors, numbers, texts, lists and dicts",
            )


def with_own_state(trainer: Trainer) -> Trainer:
    """Return what a checkpoint is made of: the trainer, with the state of its task's own if it has some."""
    own = trainer.task.state
    if not own or isinstance(trainer, Several):
        return trainer
    check_stateful(own, "Task.state")
    return Several(trainer.task, {"model": trainer}, own)


class Several(Trainer):
    """The trainers of a script's models, as checkpoints and metrics see a trainer. It takes no steps itself.

    The names of a model's parameters begin with its own name; those of the only model of a script do not.
    """

    def __init__(self, task: Task, trainers: Mapping[str, Trainer], own: Mapping[str, Stateful]) -> None:
        """Take the trainers, and what the script saves beside them, by name."""
        self._trainers, self.own = trainers, own
        self._prefixes = {name: "" if len(trainers) == 1 else f"{name}." for name in trainers}
        first, *others = trainers.values()
        self.task, self.options, self.scaler, self.dtype = task, first.options, None, first.dtype
        self.model = nn.ModuleDict({name: one.model for name, one in trainers.items()}) if others else first.model
        self._parameters = dict(self.model.named_parameters())
        self.optimizer = _Groups(trainers) if others else first.optimizer
        self.is_sharded = any(one.is_sharded for one in trainers.values())
        self.period, self.replicas, self.pipeline = first.period, first.replicas, first.pipeline
        self.sends_from = first.sends_from
        self.copies = {
            prefix + name: prefix + there
            for one, prefix in zip(trainers.values(), self._prefixes.values(), strict=True)
            for name, there in one.copies.items()
        }

    @property
    def roots(self) -> list[nn.Module]:
        return [root for trainer in self._trainers.values() for root in trainer.roots]

    @property
    def ready(self) -> float | None:
        """The time at which the first of the models was ready."""
        return min((one.ready for one in self._trainers.values() if one.ready is not None), default=None)

    @ready.setter
    def ready(self, when: float | None) -> None:
        for trainer in self._trainers.values():
            trainer.ready = when

    def share_buffers(self) -> None:
        for trainer in self._trainers.values():
            trainer.share_buffers()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            self._prefixes[name] + key: shape
            for name, one in self._trainers.items()
            for key, shape in one.shapes().items()
        }

    def state(self) -> StateDict:
        """Return the models' states as one, with the state that the script has registered."""
        tensors: dict[str, Tensor] = {}
        groups: list[dict[str, Any]] = []
        values: dict[str, dict[str, Any]] = {}
        for name, trainer in self._trainers.items():
            one = _with_prefix(trainer.state(), self._prefixes[name])
            tensors |= one.tensors
            groups += one.groups
            for kind, entries in one.values.items():
                values.setdefault(kind, {}).update(entries)
        values[_OWN] = self._encoded(tensors)
        return StateDict(tensors, groups, values)

    def check_state(self) -> None:
        for trainer in self._trainers.values():
            trainer.check_state()
        self._encoded({})
        if self.left_out is not None:
            with raised_on_all_ranks():
                raise self.left_out

    def load(self, state: StateDict) -> None:
        """Load the models' states and the script's own.

        Raises:
            UsageError: the script has registered something that the checkpoint lacks.
        """
        begin = 0
        for name, trainer in self._trainers.items():
            count = len(trainer.optimizer.param_groups)
            groups = state.groups[begin : begin + count]
            begin += count
            own = StateDict(state.tensors, groups, state.values)
            trainer.load(_without_prefix(own, self._prefixes[name]))
        self._restore(state)

    def room(
        self, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], everywhere: Collection[str]
    ) -> dict[str, Tensor]:
        """Return room for the models, and for what is registered: tensors like its own, which may be sharded.

        If it has none yet, a tensor with the name and shape of a parameter is like that parameter, such as an average of it.
        """
        own: dict[str, Tensor] = {}
        self._encoded(own)
        found = super().room(shapes, everywhere)
        for name, (shape, dtype) in shapes.items():
            if name.startswith(f"{_OWN}."):
                like = own.get(name, self._parameter_at_end_of(name))
                if like is not None and tuple(like.shape) == shape:
                    found[name] = torch.empty_like(like, dtype=dtype, requires_grad=False)
        return found

    def _parameter_at_end_of(self, name: str) -> Tensor | None:
        """The parameter whose name a longer one ends with."""
        ends = (one for one in self._parameters if name.endswith(f".{one}"))
        return self._parameters.get(max(ends, key=len, default=""))

    def _encoded(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return the registered state, without what a checkpoint cannot hold: that must not cost the rest."""
        found: dict[str, Any] = {}
        self.left_out = None
        for name, one in self.own.items():
            own: dict[str, Tensor] = {}
            try:
                found[name] = encode(one.state_dict(), f"{_OWN}.{name}", own)
                tensors |= own
            except UsageError as error:
                self.left_out = error
        return found

    def _restore(self, state: StateDict) -> None:
        saved = state.values.get(_OWN, {})
        if missing := [name for name in self.own if name not in saved]:
            with raised_on_all_ranks():
                raise UsageError(
                    f"--resume: the checkpoint has no {', '.join(missing)}, which the script registers",
                    fix="resume with the script that has written it, or without registering that, or start over without --resume",
                )
        for name, one in self.own.items():
            one.load_state_dict(decode(saved[name], state.tensors))


class _Groups(Optimizer):
    """The parameter groups of several optimizers, as one optimizer would have them."""

    def __init__(self, trainers: Mapping[str, Trainer]) -> None:
        self.param_groups = [group for one in trainers.values() for group in one.optimizer.param_groups]


def _with_prefix(state: StateDict, prefix: str) -> StateDict:
    return _renamed(state, lambda name: prefix + name)


def _without_prefix(state: StateDict, prefix: str) -> StateDict:
    """Return the part of a state whose names have the prefix, without it."""
    return _renamed(state, lambda name: name.removeprefix(prefix), prefix)


def _renamed(state: StateDict, new: Callable[[str], str], prefix: str = "") -> StateDict:
    """Return a state with new names, but for entries whose names lack the prefix.

    The name of a tensor begins with its kind: ``model.fc.weight``, ``optimizer.fc.weight.exp_avg``.
    """

    def of_tensor(name: str) -> str:
        kind, _, rest = name.partition(".")
        return f"{kind}.{new(rest)}"

    return StateDict(
        {of_tensor(name): one for name, one in state.tensors.items() if name.partition(".")[2].startswith(prefix)},
        [group | {"params": [new(name) for name in group["params"]]} for group in state.groups],
        {
            kind: {new(name): renamed(value, of_tensor) for name, value in own.items() if name.startswith(prefix)}
            for kind, own in state.values.items()
        },
    )
