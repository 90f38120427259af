"""Tasks of a Slurm step share an agent, unless their control groups allow them different things, or limit each by itself."""

from __future__ import annotations

import pytest

from runner.guard.process import identity

STEP = "/system.slice/slurmstepd.scope/job_5/step_0/user"
FREE = {
    "cpuset.cpus.effective": "0-7\n",
    "cpuset.mems.effective": "0\n",
    "memory.max": "max\n",
    "memory.high": "max\n",
    "memory.swap.max": "max\n",
    "cpu.max": "max 100000\n",
    "pids.max": "max\n",
}


def of_task(number: int, monkeypatch: pytest.MonkeyPatch, step: str = STEP, **files: str) -> bytes:
    """The identity of a process in a task's group with these files."""
    group = f"{step}/task_{number}"
    shown = {"/proc/self/cgroup": f"0::{group}\n"}
    shown |= {f"/sys/fs/cgroup{group}/{name}": text for name, text in (FREE | files).items()}
    with monkeypatch.context() as patched:
        patched.setattr(identity, "_read", lambda path, **_: shown.get(path, ""))
        return identity.identity()


def test_tasks_without_limits_of_their_own_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_task(0, monkeypatch) == of_task(1, monkeypatch)
    assert of_task(0, monkeypatch) != of_task(1, monkeypatch, STEP.replace("step_0", "step_1"))
    assert of_task(0, monkeypatch) != of_task(1, monkeypatch, **{"cpuset.cpus.effective": "0-3\n"})


@pytest.mark.parametrize(("name", "limit"), [("memory.max", "1073741824\n"), ("cpu.max", "100000 100000\n")])
def test_tasks_that_are_limited_each_by_itself_are_not(name: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers of one agent would have to do with what one task may use."""
    limited = {name: limit}
    assert of_task(0, monkeypatch, **limited) != of_task(1, monkeypatch, **limited)
