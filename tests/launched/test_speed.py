"""The commands that measure, each for a moment: that they run, not what they find."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.campaigns.speed.opens import count
from tests.launching import ROOT, RUNNER, clean_environment, mpirun_path, ok, path_of, run
from tests.polling import LIMIT, poll_until
from tests.processes import is_worker
from tests.turns import Turns

COMMANDS = {
    "loop": ["--rounds", "1", "--max-steps", "2", "--batch-size", "2"],
    "loop --strategy fsdp": ["--strategy", "fsdp", "--rounds", "1", "--max-steps", "2", "--batch-size", "2"],
    "step": ["--rounds", "1", "--max-steps", "2"],
    "checkpoint": ["--rounds", "1", "--batch-size", "2"],
    "pipeline": ["--rounds", "1", "--micro-batches", "2", "--milliseconds", "1"],
    "checks": ["--rounds", "1", "--max-steps", "44"],
    "overlap": ["--rounds", "1", "--mebibytes", "1"],
}

NEEDED = {"loop --strategy fsdp": ("fsdp",), "pipeline": ("pp",), "overlap": ("mpi4py",)}


@pytest.fixture(scope="module")
def jobs() -> Iterator[Turns]:
    jobs = Turns(PYTHONPATH=str(ROOT))
    yield jobs
    jobs.close()


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.needs(*NEEDED.get(name, ()))) for name in COMMANDS]
)
def test_a_command_that_measures(command: str, jobs: Turns, tmp_path: Path) -> None:
    module = f"tests.campaigns.speed.{command.partition(' ')[0]}"
    done = ok(jobs(2, module, *COMMANDS[command], cwd=tmp_path))
    assert any(figures in done.stdout for figures in ("ms per step", " ÷ ", "  ratio ", "% of an allreduce"))
    assert not list(tmp_path.iterdir())


def test_the_hub_of_simulated_hosts() -> None:
    measured = [
        sys.executable,
        "-m",
        "tests.campaigns.speed.hub",
        "--hosts",
        "3",
        "--ranks-per-host",
        "2",
        "--seconds",
        "0.2",
    ]
    assert "all know of a failure" in ok(run(*measured, cwd=ROOT)).stdout


def test_what_strace_writes_is_counted() -> None:
    lines = [
        '12 openat(AT_FDCWD, "/usr/lib/a.so", O_RDONLY|O_CLOEXEC) = 3',
        '12 newfstatat(3, "", {st_mode=S_IFREG|0644, st_size=1, ...}, AT_EMPTY_PATH) = 0',
        '13 newfstatat(AT_FDCWD, "/usr/lib", {st_mode=S_IFDIR|0755, st_size=1, ...}, 0) = 0',
        '13 openat(AT_FDCWD, "/proc/self/stat", O_RDONLY) = 3',
        '14 readlink("/usr/bin/python", <unfinished ...>',
        '14 <... readlink resumed>"python3", 4096) = 7',
    ]
    assert count(lines) == (1, 2)


def test_the_runner_without_its_agent(tmp_path: Path) -> None:
    """With which ``tests.campaigns.speed.guard`` compares."""
    (tmp_path / "script.py").write_text("print('done')")
    assert ok(run(sys.executable, path_of("unguarded"), str(tmp_path / "script.py"))).stdout == "done\n"


MARK = "TEST_OF_BUSY"  # in the environment of all that a test has started


def loops_of(mark: str) -> list[psutil.Process]:
    """The busy loops that are there, whoever is their parent by now."""
    found = []
    for process in psutil.process_iter():
        try:
            is_loop = any(word.endswith("busy_loop.py") for word in process.cmdline())
            if is_loop and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def all_loops_of(mark: str) -> list[psutil.Process]:
    """Two that compute like any process, and one that gives way on each core; empty if any is not there."""
    loops = loops_of(mark)
    policies = sorted(os.sched_getscheduler(loop.pid) for loop in loops)
    cores = {core for loop in loops for core in loop.cpu_affinity()}
    return loops if policies == [os.SCHED_OTHER] * 2 + [os.SCHED_IDLE] * len(cores) else []


@pytest.mark.parametrize("killed", ["rank", "proxy", "mpirun"])
def test_busy_loops_end_with_what_runs_beside_them(killed: str) -> None:
    mark = uuid.uuid4().hex
    busy = [sys.executable, "-m", "tests.campaigns.speed.busy", "--load", "2", "--awake"]
    with subprocess.Popen(
        [mpirun_path(), "-np", "1", *busy, *RUNNER, "bench", "--rounds", "100000"],
        cwd=ROOT,
        env=clean_environment(**{MARK: mark}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        try:
            loops = poll_until(lambda: all_loops_of(mark), LIMIT, "all busy loops run", launcher)
            (proxy,) = {loop.parent() for loop in loops}
            assert proxy is not None
            ranks = poll_until(
                lambda: [one for one in proxy.children(recursive=True) if is_worker(one)], LIMIT, "a rank", launcher
            )
            {"rank": ranks[0], "proxy": proxy, "mpirun": psutil.Process(launcher.pid)}[killed].kill()
            assert launcher.wait(timeout=LIMIT) != 0
            assert not psutil.wait_procs([*loops, *ranks], timeout=LIMIT)[1]
        finally:
            launcher.kill()
