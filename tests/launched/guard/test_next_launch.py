"""After a failure of a launch by ``supervise`` the next one has the same agent and importer; else both end, at once or soon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launching import path_of
from tests.polling import LIMIT

LINE = "print(os.getppid(), sys.argv[2], os.environ.get('OWN'), flush=True); sys.exit(int(os.environ['CODE']))"


class Supervise:
    """Starts attempts as ``supervise`` does, each with one rank."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, set[psutil.Process]()

    def start(
        self, attempt: int, line: str = LINE, began: str = "1", opened: Sequence[int] = (), **variables: str
    ) -> subprocess.Popen[str]:
        options = ["--log-dir", str(self.folder / f"attempt-{attempt}"), "--began", began]
        return subprocess.Popen(
            [sys.executable, path_of("guarded"), *options, line],
            env=os.environ | {"CODE": "3"} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=opened,
        )

    def run(self, attempt: int, **more: Any) -> tuple[psutil.Process | int, list[str]]:
        """The importer, or its number where it has ended, and what its worker has printed."""
        process = self.start(attempt, **more)
        output, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == int(more.get("CODE", 3)), errors
        importer, *printed = output.splitlines()[1].split()
        try:
            found = psutil.Process(int(importer))
            self.seen |= {one for one in (found, *found.parents()) if one.name() in ("runner-importer", "runner-agent")}
        except psutil.NoSuchProcess:
            return int(importer), printed
        return found, printed


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    made = Supervise(tmp_path)
    yield made
    for one in made.seen:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def test_after_a_failure_the_next_has_the_same_importer_and_all_else_of_its_own(supervise: Supervise) -> None:
    first, printed = supervise.run(1, OWN="a")
    assert printed == [f"{supervise.folder}/attempt-1", "a"]
    second, printed = supervise.run(2, OWN="b")
    assert printed == [f"{supervise.folder}/attempt-2", "b"]
    third, printed = supervise.run(3)
    assert printed == [f"{supervise.folder}/attempt-3", "None"]
    assert first == second == third


@pytest.mark.parametrize("more", [{"began": "2"}, {"OMP_NUM_THREADS": "7"}, {"line": f"{LINE} "}])
def test_what_differs_has_its_own(more: dict[str, str], supervise: Supervise) -> None:
    first, _ = supervise.run(1)
    assert supervise.run(2, **more)[0] != first


@pytest.mark.parametrize("code", ["0", "2", "75"])
def test_where_no_next_start_follows_none_is_kept(code: str, supervise: Supervise) -> None:
    first, _ = supervise.run(1, CODE=code)
    assert supervise.run(2, CODE=code)[0] != first


@pytest.mark.parametrize("by", ["importer", "agent"])
def test_where_it_was_killed_the_next_has_its_own(by: str, supervise: Supervise) -> None:
    first, _ = supervise.run(1)
    assert isinstance(first, psutil.Process)
    victim = first if by == "importer" else first.parent()
    assert victim is not None
    victim.kill()
    victim.wait(LIMIT)
    assert supervise.run(2)[0] != first


def test_an_agent_that_is_stopped_is_not_waited_for(supervise: Supervise) -> None:
    first, _ = supervise.run(1)
    assert isinstance(first, psutil.Process)
    agent = first.parent()
    assert agent is not None
    agent.suspend()
    try:
        assert supervise.run(2)[0] != first
    finally:
        agent.resume()


def test_what_no_next_start_takes_ends_by_itself(supervise: Supervise) -> None:
    supervise.run(1)
    assert len(supervise.seen) == 2
    assert not psutil.wait_procs(supervise.seen, timeout=LIMIT)[1]


def test_what_is_kept_does_not_hold_what_the_launcher_has_opened(supervise: Supervise) -> None:
    ours, theirs = os.pipe()
    importer, _ = supervise.run(1, opened=[theirs])
    os.close(theirs)
    assert os.read(ours, 1) == b""  # Hydra waits for that
    os.close(ours)
    assert supervise.run(2)[0] == importer
