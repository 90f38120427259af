"""The lock by which the ranks of a host compile a graph once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.torchrun import compile_caches
from runner.torchrun.compile_caches import cache_variables

HOLD = (
    "import os, sys, time; from runner.torchrun import compile_caches as c; "
    "print(c._wait('key'), flush=True); sys.stdin.readline(); c._end(); time.sleep(60)"
)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Another rank, which compiles the graph."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "False\n", "it is the first"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("how", ["it is done", "it dies"])
def test_a_rank_waits_for_the_one_that_compiles(other: subprocess.Popen[str], how: str) -> None:
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(compile_caches._wait("key")))
    waiting.start()
    waiting.join(0.3)
    assert not found
    if how == "it dies":
        other.kill()
    else:
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
    waiting.join(30)
    assert found == [True], "it looks into the cache again"


def test_a_rank_goes_on_at_the_deadline(other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_caches, "_timeouts", [])
    monkeypatch.setattr(compile_caches, "_WAIT_SECONDS", 0.1)
    assert not compile_caches._wait("key")
    monkeypatch.setattr(compile_caches, "_WAIT_SECONDS", 600.0)
    assert not compile_caches._wait("key"), "once in vain is enough"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    assert not compile_caches._wait("key")


def test_users_variables_stay() -> None:
    assert set(cache_variables({})) == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    assert set(cache_variables({"TRITON_CACHE_DIR": "mine"})) == {"TORCHINDUCTOR_CACHE_DIR"}
    assert cache_variables({"TORCHINDUCTOR_CACHE_DIR": "mine"}) == {}, "Triton's is in it"
