"""How a training shows how far it is: a bar on a terminal, a line per epoch elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from runner.launch.processes import on_terminal


class Show(Protocol):
    """Where progress goes."""

    def step(self, epoch: int, done: int) -> None:
        """``done`` steps of this epoch are done."""

    def line(self, text: str) -> None:
        """Something worth keeping on the screen."""


class _Silent:
    def step(self, epoch: int, done: int) -> None:
        pass

    def line(self, text: str) -> None:
        pass


class _Lines:
    def step(self, epoch: int, done: int) -> None:
        pass

    def line(self, text: str) -> None:
        print(text, flush=True)


@contextmanager
def show_progress(*, visible: bool, epochs: int, steps_per_epoch: int) -> Iterator[Show]:
    """A bar, lines, or nothing on ranks that should be silent."""
    if not visible:
        yield _Silent()
    elif not on_terminal():
        yield _Lines()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(force_terminal=True, highlight=False, soft_wrap=True)
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=steps_per_epoch)

            class Bar:
                def step(self, epoch: int, done: int) -> None:
                    progress.update(bar, description=f"epoch {epoch + 1}/{epochs}", completed=done)

                def line(self, text: str) -> None:
                    progress.console.print(text, markup=False)

            yield Bar()
