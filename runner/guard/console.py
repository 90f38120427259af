"""What a guard prints."""

from __future__ import annotations

import contextlib
import os
import sys

from runner.guard.launcher import described, error_output_of
from runner.guard.output import Output
from runner.guard.settings import Words


class Console:
    """Standard error, or that of the launcher where it no longer shows its ranks'."""

    def __init__(self, words: Words, launcher: int, output: Output) -> None:
        self._words, self._launcher, self._output = words, launcher, output
        self.said = ""  # last, without further lines; or the worker's own cause of its end

    def say(self, text: str, *, fix: str = "", last: bool = False, is_named: bool = True) -> None:
        """Print a line, or several.

        Args:
            fix: what to do about it, for the first line.
            last: the launcher has been told to end, or is about to.
            is_named: with this rank's name.
        """
        output = error_output_of(self._launcher) if last and not self._words.is_shown_to_the_end else None
        self.said, end, more = text.partition("\n")
        line = self._line("; ".join(filter(None, (self.said, fix))), is_named) + end + more
        with contextlib.suppress(OSError):  # the launcher that took the output may be gone
            print(line, file=output or sys.stderr, flush=True)
        if output:
            self._output.keep(line)

    def say_once(self, text: str) -> None:
        """Print what concerns all ranks, on one of them."""
        if self._words.is_reporting:
            self.say(text, is_named=False)

    def say_ended(self, name: str, sender: int, *, after_rendezvous: bool) -> None:
        """Print who ends this rank, by which signal. If the launcher ends all ranks, only one of them prints it."""
        how_to_resume = f"; {self._words.how_to_resume}" if self._words.how_to_resume and after_rendezvous else ""
        if self._launcher and sender in (os.getppid(), self._launcher):
            if self._words.is_reporting:
                text = "the job was ended, or another rank has failed and says so itself"
                self.say(f"{name} from the launcher: {text}{how_to_resume}", last=True)
        else:
            self.say(f"{name} from {described(sender)}{how_to_resume}")

    def complain(self, text: str) -> None:
        """Print what has nothing to do with the end of the rank."""
        print(self._line(text, True), file=sys.stderr, flush=True)

    def _line(self, text: str, is_named: bool) -> str:
        return f"runner: {self._words.label}: {text}" if is_named else f"runner: {text}"
