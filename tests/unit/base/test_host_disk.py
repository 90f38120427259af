"""The folder of a host's own disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base import host_disk
from runner.base.host_disk import disk_of, file_system


def test_the_sites_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("job", "tmp"):
        (tmp_path / name).mkdir()
    variables = {"LOCAL_SCRATCH": str(tmp_path / "job"), "TMPDIR": str(tmp_path / "tmp")}
    assert disk_of(variables) == tmp_path / "job"
    assert disk_of(variables | {"SLURM_TMPDIR": str(tmp_path / "absent")}) == tmp_path / "job"
    assert disk_of({}) == Path("/tmp")
    monkeypatch.setattr(host_disk, "file_system", lambda path: "lustre" if path.name == "job" else "ext4")
    assert disk_of(variables) == tmp_path / "tmp", "hosts share the other"


def test_kinds_of_file_systems() -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(Path("/")) != ""
