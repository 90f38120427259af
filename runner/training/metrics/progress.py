"""The progress of a training: a bar on a terminal that can redraw it, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from runner.base.quantities import clock_text
from runner.launch.launcher_processes import on_terminal

# Seconds between two lines of progress: on a terminal, and in a file.
_BEAT_ON_TERMINAL = 10.0
_BEAT_ELSEWHERE = 60.0


class ProgressDisplay:
    """Shows the training's progress. This one, of a silent rank, shows nothing."""

    def step(self, epoch: int, step: int, loss: float | None) -> None:
        """Show that a step of this epoch (the first is 1) is done; the loss is the last one known."""

    def line(self, text: str) -> None:
        """Print a line that stays on the screen."""


@dataclass
class Lines(ProgressDisplay):
    """Prints lines, and a line of progress when nothing was printed for ``beat`` seconds."""

    epochs: int
    steps: int | None  # at the end, if it is known
    done: int  # at the start
    beat: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._start = self._last = self.clock()

    def step(self, epoch: int, step: int, loss: float | None) -> None:
        now = self.clock()
        if now - self._last < self.beat or step == self.steps:
            return
        whole, left = "", ""
        if self.steps is not None:
            seconds = (now - self._start) / (step - self.done) * (self.steps - step)
            whole, left = f"/{self.steps}", f"  {clock_text(seconds)} left"
        known = "" if loss is None else f"  loss {loss:.4g}"
        self.line(f"epoch {epoch}/{self.epochs}  step {step}{whole}{known}{left}")

    def line(self, text: str) -> None:
        print(text, flush=True)
        self._last = self.clock()


@contextmanager
def show_progress(*, visible: bool, epochs: int, steps: int | None, done: int) -> Iterator[ProgressDisplay]:
    """Show a bar on a terminal, and lines elsewhere; nothing on silent ranks.

    Args:
        steps: the number of steps of the whole training; None if that is not known.
        done: the number of steps that were done before, in a resumed training.
    """
    if not visible:
        yield ProgressDisplay()
    elif not on_terminal(in_place=True):
        yield Lines(epochs, steps, done, _BEAT_ON_TERMINAL if on_terminal() else _BEAT_ELSEWHERE)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(force_terminal=True, highlight=False, soft_wrap=True)
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=steps, completed=done)

            class Bar(ProgressDisplay):
                def step(self, epoch: int, step: int, loss: float | None) -> None:
                    progress.update(bar, description=f"epoch {epoch}/{epochs}", completed=step)

                def line(self, text: str) -> None:
                    progress.console.print(text, markup=False)

            yield Bar()
