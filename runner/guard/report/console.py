"""The output of a guard."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time

from runner.guard.process.launcher import described, error_output_of
from runner.guard.report.output import RankOutput
from runner.guard.settings import Origin, Words

_PRINTING = 2.0  # seconds in which a launcher, or a pager behind it, takes what is printed


class Console:
    """The rank's standard error, or that of the launcher where it no longer shows its ranks'."""

    def __init__(self, words: Words, launcher: int, output: RankOutput, origin: Origin) -> None:
        self._words, self._launcher, self._output, self._origin = words, launcher, output, origin
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
        print_text(f"{line}\n", output.fileno() if output else self._errors)
        if output:
            output.close()
            self._output.keep(line)

    def repeat(self, text: str) -> None:
        """Print what the worker has printed itself, if its launcher does not show that any more."""
        if not self._words.is_shown_to_the_end and (output := error_output_of(self._launcher)):
            print_text(f"{self._line(text, False)}\n", output.fileno())
            output.close()

    def say_once(self, text: str) -> None:
        """Print what concerns all ranks, on one of them."""
        if self._words.is_reporting:
            self.say(text, is_named=False)

    def say_ended(self, name: str, sender: int, *, has_trained: bool) -> None:
        """Print who ends this rank, by which signal. If the launcher ends all ranks, only one of them prints it."""
        how_to_resume = f"; {self._words.how_to_resume}" if self._words.how_to_resume and has_trained else ""
        if self.is_launchers(sender):
            if self._words.is_reporting:
                text = "the job was ended, or another rank has failed (see its message)"
                self.say(f"{name} from the launcher: {text}{how_to_resume}", last=True)
        else:
            self.say(f"{name} from {described(sender)}{how_to_resume}")

    def is_launchers(self, sender: int) -> bool:
        """Whether a signal comes from the launcher."""
        return bool(self._launcher) and sender in (self._origin.parent, self._launcher)

    def complain(self, text: str) -> None:
        """Print what has nothing to do with the end of the rank."""
        print_text(f"{self._line(text, True)}\n", self._errors)

    @property
    def _errors(self) -> int | None:
        """The descriptor of the rank's standard error; None if it was started without one."""
        return self._output.ends.get(2, self._origin.descriptors.get(2))

    def _line(self, text: str, is_named: bool) -> str:
        return f"runner: {self._words.label}: {text}" if is_named else f"runner: {text}"


def print_text(text: str, file: int | None) -> None:
    """Print lines, as far as they are taken in time: a guard does not wait for a launcher that was stopped, or has ended."""
    if file is None:
        return
    stream = sys.stderr  # its encoding is the ranks', too; None: it was closed
    content = text.encode(stream.encoding, stream.errors or "strict") if stream else text.encode(errors="replace")
    left, end = memoryview(content), time.monotonic() + _PRINTING
    with contextlib.suppress(OSError, ValueError):  # it was closed
        while left and _is_writable(file, end - time.monotonic()):
            # A pipe that is writable has room for so many bytes.
            left = left[os.write(file, left[: select.PIPE_BUF]) :]


def _is_writable(file: int, within: float) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(1000 * max(0.0, within)))
