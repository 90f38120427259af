"""What Slurm says of the time that a job has left. That the real one does is tried by make test-faults, case 13."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.training.slurm import time_left


@pytest.mark.parametrize(
    ("answer", "left"), [("59:00", 3540.0), ("1-00:00:01", 86401.0), ("UNLIMITED", None), ("INVALID", None), ("", None)]
)
def test_the_time_left_as_squeue_shows_it(
    answer: str, left: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n[ $2 = --jobs=17 ] && echo {answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert time_left({"SLURM_JOB_ID": "17"}) == left
    assert time_left({}) is None
    monkeypatch.setenv("PATH", "")
    assert time_left({"SLURM_JOB_ID": "17"}) is None
