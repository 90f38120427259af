"""torch.compile on a host with several ranks: one compiles what several need, into a cache on the host's own disk."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from tests.launching import RUNNER, mpirun, ok, path_of

PROGRAM, ODD = path_of("compiles_a_model"), path_of("compiles_oddly")


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


@pytest.mark.needs("mpi4py")
def test_a_graph_that_fails_is_not_waited_for(tmp_path: Path) -> None:
    found = ranks(ok(mpirun(2, *RUNNER, ODD, "fails", TMPDIR=str(tmp_path))).stdout)
    assert {rank["value"] for rank in found} == {"InductorError"}
    assert all(len(rank["locks"]) == 1 for rank in found)
    assert any(rank["locks"] == [True] for rank in found), "the last that looks finds it free"


@pytest.mark.needs("mpi4py")
@pytest.mark.parametrize("kind", ["communicates", "exchanges"])
def test_a_graph_with_collectives_is_compiled_by_each_rank(tmp_path: Path, kind: str) -> None:
    """Compiler passes may wait for all ranks there."""
    found = ranks(ok(mpirun(2, *RUNNER, ODD, kind, TMPDIR=str(tmp_path))).stdout)
    assert len(found) == 2
    assert {rank["value"] for rank in found} == {found[0]["value"]}
    assert [rank["locks"] for rank in found] == [[], []]
