"""The worker's process group is ended as long as it is the worker's."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from runner.guard.process.group import Group


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_group_with_processes_is_ended(child: subprocess.Popen[bytes]) -> None:
    group = Group(is_own=True)
    group.end_if_empty(child.pid)
    threading.Thread(target=child.wait).start()  # the importer reaps
    group.end(child.pid, 5.0)
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


def test_a_group_that_was_empty_is_not_ended_later(child: subprocess.Popen[bytes]) -> None:
    """Its number may be another process's by then: here the child's."""
    with subprocess.Popen(["true"], start_new_session=True) as worker:
        worker.wait()
        group = Group(is_own=True)
        group.end_if_empty(worker.pid)
    group.end(child.pid, 5.0)
    assert child.poll() is None
