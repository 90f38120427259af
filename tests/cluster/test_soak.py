from __future__ import annotations

from pathlib import Path

from tests.campaigns.endurance.soak import FAULTS, soak
from tests.cluster.virtual import Cluster


def test_each_fault_once_loses_nothing(vc: Cluster, tmp_path: Path) -> None:
    assert soak(vc, tmp_path, faults=len(FAULTS), every=2, slots=1, seed=0) == []
