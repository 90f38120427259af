"""Workloads and tools that take turns in one real job: the import of torch, which is most of a small job's time, is paid once.

What a turn prints and its exit code are those that the runner gives the same error in a job of its own. What happens before
a target is called (options of the runner, launchers, the ranks' agreement) needs a job of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.launching import PROGRAMS, RUNNER, clean_environment, folder_of, mpirun_path
from tests.polling import LIMIT


class Turns:
    """Jobs of several sizes, each started at its first turn, and ended by ``close``."""

    def __init__(self, *options: str, **environment: str) -> None:
        """``options`` are the runner's."""
        self._options, self._environment = options, environment
        self._jobs: dict[int, _Job] = {}

    def __call__(
        self, ranks: int, *command: str, cwd: Path | None = None, timeout: float = LIMIT, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``WORKLOAD|TOOL [ARGUMENTS…]`` on this many ranks. The ranks' outputs follow one another.

        Args:
            cwd: the folder; without it, that of the workload, where tests/programs has it.

        Raises:
            TimeoutError: the turn did not end in time.
        """
        if ranks not in self._jobs:
            self._jobs[ranks] = _Job(ranks, self._options, self._environment)
        is_there = False
        try:
            done = self._jobs[ranks].turn(
                list(command), timeout, cwd=str(cwd or _folder(command[0])), environment=environment
            )
            is_there = not self._jobs[ranks].has_ended
        finally:
            if not is_there:
                self._jobs.pop(ranks).close()
        return done

    def close(self) -> None:
        for job in self._jobs.values():
            job.close()
        self._jobs.clear()


class _Job:
    def __init__(self, ranks: int, options: Sequence[str], environment: dict[str, str]) -> None:
        self._ranks = ranks
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = itertools.count()
        self._shown = tempfile.TemporaryFile("w+")
        launcher = [mpirun_path(), "-np", str(ranks)] if ranks > 1 else []
        self._process = subprocess.Popen(
            [*launcher, *RUNNER, *options, "takes_turns", self._folder.name, str(os.getpid())],
            cwd=folder_of("takes_turns"),
            env=clean_environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=self._shown,
            stderr=subprocess.STDOUT,
        )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def turn(self, command: list[str], timeout: float, **place: Any) -> subprocess.CompletedProcess[str]:
        turn = self._ask(command=command, **place)
        deadline = time.monotonic() + timeout
        codes = [Path(f"{turn}.code.{rank}") for rank in range(self._ranks)]
        while not all(code.exists() for code in codes) and not self.has_ended:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{' '.join(command)} did not end within {timeout} s: {self._output(turn, 'err')}")
            time.sleep(0.005)
        outputs = [self._output(turn, name) for name in ("out", "err")]
        if self.has_ended:
            self._shown.seek(0)
            outputs[1] += self._shown.read()
            return subprocess.CompletedProcess(
                command, self._process.returncode or 1, *outputs
            )  # not the end of a turn
        return subprocess.CompletedProcess(command, max(int(code.read_text()) for code in codes), *outputs)

    def _ask(self, **asked: Any) -> Path:
        turn = Path(self._folder.name, str(next(self._numbers)))
        turn.with_suffix(".new").write_text(json.dumps(asked))
        turn.with_suffix(".new").rename(turn)  # it is there at once
        return turn

    def _output(self, turn: Path, name: str) -> str:
        files = [Path(f"{turn}.{name}.{rank}") for rank in range(self._ranks)]
        text = "".join(file.read_text() for file in files if file.exists())
        return re.sub(r"^\[Gloo\] Rank .*\n", "", text, flags=re.MULTILINE)  # torch 2.9's

    def close(self) -> None:
        self._ask(command=[])
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()
        self._shown.close()
        self._folder.cleanup()


def _folder(workload: str) -> Path:
    return folder_of(workload) if [*PROGRAMS.glob(f"*/{workload}.py")] else PROGRAMS


def turns_fixture(scope: Literal["module", "package"], **environment: str) -> Any:
    """The fixture ``turns``: jobs in which the workloads of a file, or of a folder, take turns."""

    @pytest.fixture(scope=scope, name="turns")
    def fixture() -> Iterator[Turns]:
        with closing(Turns(**environment)) as turns:
            yield turns

    return fixture
