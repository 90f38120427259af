"""A logger in a thread of its own: one that blocks or fails does not stop the training."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.base.errors import RunnerError, UsageError
from runner.training.loggers.logger import Logger

# Seconds: that a logger may take to start, to write the rest at the end, and to do so if the run has failed or was asked to end, when
# the time until it is killed may be short.
_START, _END, _EARLY_END = 60.0, 30.0, 5.0
_MOST = 10_000  # steps that wait for it; those after them are left out
_LONGEST = 300  # characters of an error


class BackgroundLogger:
    """Hands values to a logger, and collects what there is to say about it."""

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        """Start the logger.

        Args:
            name: what messages call it.

        Raises:
            UsageError: it fails, or does not start in time.
        """
        self.name = name
        self._waiting: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._lost = 0  # steps
        self._news: list[str] = []
        self._names: dict[str, str] = {}  # under which the logger takes values, by their own
        self._exit_handlers: list[Callable[..., Any]] = []
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(make,), name=name, daemon=True)
        self._thread.start()
        fix = "see that what it writes to can be reached and written, or leave it out"
        if not self._is_ready.wait(_START):
            raise UsageError(f"{name} has not started within {_START:g} s", fix=fix)
        if isinstance(self._error, RunnerError):
            raise self._error
        if self._error is not None:
            raise UsageError(f"{name} cannot be started: {_line(self._error)}", fix=fix)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hand over the values of a step. Does not wait."""
        if self._error is not None:
            return
        if self._waiting.qsize() < _MOST:
            self._waiting.put((step, values))
            return
        if not self._lost:
            self._news.append(f"{self.name} does not keep up: {_MOST} steps wait for it, and later ones are left out")
        self._lost += 1

    def news(self) -> list[str]:
        """Lines to print that were not given before."""
        news, self._news = self._news, []
        return news

    def close(self, *, is_early: bool = False) -> list[str]:
        """Have the rest written, and return the lines to print."""
        limit = _EARLY_END if is_early or self._error else _END
        self._waiting.put(None)
        self._thread.join(limit)
        if self._thread.is_alive() or self._error:
            for handler in self._exit_handlers:  # as that of W&B, which waits for its service
                atexit.unregister(handler)
        if self._thread.is_alive() and not self._error:
            self._lost += max(0, self._waiting.qsize() - 1)
            steps = f"the last of its values may be missing{f', {self._lost} steps at least' if self._lost else ''}"
            self._news.append(f"{self.name} has not finished within {limit:g} s: {steps}")
        elif self._lost and not self._error:
            self._news.append(f"{self.name} lacks {self._lost} steps")
        return self.news()

    def _work(self, make: Callable[[], Logger]) -> None:
        # Another package's code may raise anything; SystemExit, too, would end the thread without a word.
        try:
            with _registering(self._exit_handlers):
                logger = make()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._is_ready.set()
        try:
            while (one := self._waiting.get()) is not None:
                logger.log(one[0], self._named(logger, one[1]))
        except BaseException as error:
            self._fail(error, f" at step {one[0]}; training continues without it" if one else "")
            with contextlib.suppress(BaseException):
                logger.close()
            return
        try:
            logger.close()
        except BaseException as error:
            self._fail(error, " at its end; values may be missing")

    def _named(self, logger: Logger, values: Mapping[str, float]) -> Mapping[str, float]:
        """The values by names that the logger takes, no two alike. A name that is replaced is told once."""
        taken = getattr(logger, "name_of", None)
        if taken is None:
            return values
        for name in sorted(values.keys() - self._names.keys(), key=lambda name: (taken(name) != name, name)):
            new = taken(name)
            while new in self._names.values():
                new += "_"
            self._names[name] = new
            if new != name:
                self._news.append(f"{self.name} has no name {name!r}: {new!r} stands for it there")
        return {self._names[name]: value for name, value in values.items()}

    def _fail(self, error: BaseException, what: str) -> None:
        self._news.append(f"{self.name} has failed ({_line(error)}){what}")
        self._error = error


@contextlib.contextmanager
def _registering(found: list[Callable[..., Any]]) -> Iterator[None]:
    """Collect the exit handlers that this thread registers meanwhile; those of other threads are not the logger's."""
    register, own = atexit.register, threading.get_ident()

    def collect(function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
        if threading.get_ident() == own:
            found.append(function)
        return register(function, *arguments, **named)

    atexit.register = collect  # type: ignore[assignment]  # until the logger has started, see above
    try:
        yield
    finally:
        atexit.register = register


def _line(error: BaseException) -> str:
    """An error's type and text, as a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_LONGEST]}" if text else type(error).__name__
