"""A count of the training's steps by torch's global optimizer hooks; the program needs no change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary


class OptimizerSteps:
    """Counts the steps of the optimizer with the most parameters (ties: the one that has stepped most often).

    What else steps is not counted: a smaller network's optimizer, the one step by which some libraries make an optimizer's state, the
    runner's own trial of an optimizer, and a step within a step, as Horovod's optimizer makes one of the same object.
    """

    def __init__(self, warmup: int, begin: Callable[[], None], after_step: Callable[[], None]) -> None:
        """
        Args:
            begin: called after an optimizer's ``warmup`` steps; once more if another one takes its place.
            after_step: called after each of its steps from then on.
        """
        self._warmup, self._begin, self._after = warmup, begin, after_step
        self._depth = 0
        self._largest = 0
        self._made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # the steps of each
        self._counted: Any = None
        self._size = 0

    def watch(self) -> None:
        """Install the hooks. Call this after torch has been imported."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._enter)
        register_optimizer_step_post_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self._depth += 1

    def _leave(self, optimizer: Any, *_: Any) -> None:
        from runner.parallel.support import TRIED  # not before: it needs the whole of torch

        self._depth -= 1
        if self._depth or hasattr(optimizer, TRIED):
            return
        number = self._made[optimizer] = self._made.get(optimizer, 0) + 1
        if optimizer is self._counted:
            self._after()
            return
        size = sum(one.numel() for group in optimizer.param_groups for one in group["params"])
        self._largest = max(self._largest, size)
        is_ahead = size > self._size or number > self._made[self._counted]
        if size == self._largest and number >= self._warmup and is_ahead:
            self._counted, self._size = optimizer, size
            self._begin()
