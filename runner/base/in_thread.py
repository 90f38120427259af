"""A call in a daemon thread: neither the training nor the end of the process waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def call_in_thread(function: Callable[[], T]) -> Future[T]:
    """Call a function in a daemon thread. The threads of ``ThreadPoolExecutor`` would hold up the process at its end."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # SystemExit, too, would end the thread without a word
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
