"""A line now and then about a long run whose output is no terminal: which test runs, and how many are left."""

from __future__ import annotations

import threading
import time

import pytest

SECONDS = 60.0


class Progress:
    """A plugin of the process that hands tests out to pytest-xdist's workers. It prints also while no test ends."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._started: dict[str, float] = {}  # when each test that runs has begun
        self._done: set[str] = set()
        self._has_ended = threading.Event()
        threading.Thread(target=self._print, daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._started[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._started.pop(nodeid, None)
        self._done.add(nodeid)

    def pytest_sessionfinish(self) -> None:
        self._has_ended.set()

    def _print(self) -> None:
        reporter = self._session.config.pluginmanager.get_plugin("terminalreporter")
        while not self._has_ended.wait(SECONDS):
            if running := self._started.copy():
                left = self._session.testscollected - len(self._done)
                reporter.write_line("\n" + line(running, left, time.monotonic()))  # below the dots


def line(started: dict[str, float], left: int, now: float) -> str:
    """``started``: the tests that run. The one that has run longest is named. ``left``: how many tests have not ended."""
    longest = min(started, key=lambda test: started[test])
    others = f" and {len(started) - 1} more" if len(started) > 1 else ""
    return f"tests left: {left}; running: {longest} ({now - started[longest]:.0f} s){others}"
