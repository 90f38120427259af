"""Training and evaluation mode, module by module: a part that its user has put into evaluation mode stays so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


def begin_training(roots: Iterable[nn.Module]) -> None:
    """Put each model into training mode as a whole if its root is in evaluation mode, as ``from_pretrained`` gives it."""
    for root in roots:
        if not root.training:
            root.train()


@contextmanager
def modes_kept(roots: Iterable[nn.Module], *, if_evaluating: bool = False) -> Iterator[None]:
    """Restore each module's mode after a context; with ``if_evaluating`` only if a root is in evaluation mode then."""
    roots = [*roots]
    modes = {module: module.training for root in roots for module in root.modules()}
    try:
        yield
    finally:
        if not (if_evaluating and all(root.training for root in roots)):
            for module, mode in modes.items():
                if module.training != mode:
                    module.train(mode)  # which may do more, as in layers that merge weights for evaluation
            for module, mode in modes.items():  # roots that share modules
                module.training = mode


@contextmanager
def evaluation_mode(roots: Iterable[nn.Module]) -> Iterator[None]:
    """A context in which the models are in evaluation mode as a whole."""
    roots = [*roots]
    with modes_kept(roots):
        for root in roots:
            root.eval()
        yield
