"""torch.compile on a host with several ranks: one compiles what several need, into a cache on the host's own disk."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from tests.launching import RUNNER, mpirun, ok, path_of

PROGRAM = path_of("compiles_a_model")


def ranks(text: str) -> list[dict[str, Any]]:
    return sorted(
        (json.loads(line) for line in text.splitlines() if line.startswith("{")), key=lambda rank: int(rank["rank"])
    )


@pytest.mark.needs("mpi4py")
def test_one_rank_compiles_each_graph(tmp_path: Path) -> None:
    found = ranks(ok(mpirun(3, *RUNNER, PROGRAM, TMPDIR=str(tmp_path))).stdout)
    assert sum(rank["graphs"] for rank in found) == 2, "one forward and one backward"
    assert len({rank["value"] for rank in found}) == 1
    folder = tmp_path / f"torchinductor_{getpass.getuser()}"
    assert {rank["cache"] for rank in found} == {str(folder)}
    again = ranks(ok(mpirun(3, *RUNNER, PROGRAM, TMPDIR=str(tmp_path))).stdout)
    assert sum(rank["graphs"] for rank in again) == 0
    assert again[0]["value"] == found[0]["value"]


@pytest.mark.needs("mpi4py")
def test_a_users_own_cache_stays(tmp_path: Path) -> None:
    found = ranks(ok(mpirun(1, *RUNNER, PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "mine"))).stdout)
    assert found[0]["cache"] == str(tmp_path / "mine")
