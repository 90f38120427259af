"""Processes that the kernel has killed for memory, in the files of both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.guard.process.memory import killed_for_memory


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/slurm/job_7\n", "slurm/job_7/memory.events", "low 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("4:memory:/slurm/uid_1\n0::/\n", "memory/slurm/uid_1/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
        ("9:cpu,memory:/\n", "memory/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("0::/a:b\n", "unified/a:b/memory.events", "oom_kill 2\n"),
    ],
)
def test_the_kernels_count(tmp_path: Path, cgroup: str, file: str, text: str) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    path = tmp_path / "mounts" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert killed_for_memory(tmp_path, tmp_path / "mounts") == 2


def test_without_control_groups_there_is_none(tmp_path: Path) -> None:
    assert killed_for_memory(tmp_path, tmp_path) == 0
    (tmp_path / "cgroup").write_text("0::/\n1:name=systemd:/\n")
    assert killed_for_memory(tmp_path, tmp_path) == 0
    assert killed_for_memory() >= 0
