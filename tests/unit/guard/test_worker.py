"""How long a worker gets that is to save and to end, and the end of what it has left."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.guard.process.worker import Worker, killed_for_memory


@pytest.fixture
def worker() -> Iterator[Worker]:
    """One that is not forked."""
    with tempfile.TemporaryFile() as file:
        worker = Worker(rendezvous_timeout=60.0, importer=lambda: (0, file))
        yield worker
        worker.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


def test_after_a_save_it_has_as_long_to_end_as_before_it(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words come up to two seconds after a save, and later where it puts the job back into a queue."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    worker.complete_rendezvous()
    worker.board.step(1, 9, 1, 1)
    worker.let_save()
    for now[0] in range(400):  # the step: how long it may take is the business of Patience
        assert not worker.is_late()
    worker.board.enter("saving")
    for now[0] in range(400, 440):
        assert not worker.is_late()
    worker.board.enter("done")
    for now[0] in range(440, 469):
        assert not worker.is_late()
    now[0] = 470.0
    assert worker.is_late()


def test_a_worker_that_is_to_end_is_late_also_if_it_meets_the_others_meanwhile(worker: Worker) -> None:
    """One that was stopped goes on as its stack is taken."""
    worker.end(70, 0.0)
    worker.complete_rendezvous()
    assert worker.is_late()


def test_a_group_that_was_empty_is_not_ended_later(worker: Worker, child: subprocess.Popen[bytes]) -> None:
    """Its number may be another process's by then: here the child's."""
    with subprocess.Popen(["true"], start_new_session=True) as ended:
        ended.wait()
        worker.process = ended.pid
        worker.look_at_group()
    worker.process = child.pid
    worker.end_group()
    assert child.poll() is None


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/slurm/job_7\n", "slurm/job_7/memory.events", "low 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("4:memory:/slurm/uid_1\n0::/\n", "memory/slurm/uid_1/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
        ("9:cpu,memory:/\n", "memory/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("0::/a:b\n", "unified/a:b/memory.events", "oom_kill 2\n"),
    ],
)
def test_the_kernels_count_of_processes_killed_for_memory(tmp_path: Path, cgroup: str, file: str, text: str) -> None:
    """In the files of both versions of control groups."""
    (tmp_path / "cgroup").write_text(cgroup)
    path = tmp_path / "mounts" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert killed_for_memory(tmp_path, tmp_path / "mounts") == 2


def test_without_control_groups_no_process_is_killed_for_memory(tmp_path: Path) -> None:
    assert killed_for_memory(tmp_path, tmp_path) == 0
    (tmp_path / "cgroup").write_text("0::/\n1:name=systemd:/\n")
    assert killed_for_memory(tmp_path, tmp_path) == 0
    assert killed_for_memory() >= 0
