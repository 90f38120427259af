"""Each fault once that no other test has, the launchers in turn; ``make test-faults`` tries all under each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.faults.__main__ import try_case
from tests.campaigns.faults.cases import CASES, Case, occurs
from tests.campaigns.faults.scene import ALL
from tests.cluster.virtual import Cluster


def in_turn() -> list[tuple[Case, str]]:
    """Each case with the next launcher under which it can occur.

    Not srun with PMI-2, under which MPICH fails to start at times, nor a torchrun per node by srun, whose start takes twice as long.
    """
    chosen, names = [], [name for name in ALL if name not in ("srun-pmi2", "srun-torchrun")]
    for case in (case for case in CASES if not case.elsewhere):
        launcher = next((name for name in names if occurs(case, name)), None)
        if launcher is None:
            continue
        names.remove(launcher)
        names.append(launcher)
        chosen.append((case, launcher))
    return chosen


@pytest.mark.parametrize(("case", "launcher"), in_turn(), ids=[f"{case.number}-{name}" for case, name in in_turn()])
def test_the_job_ends_and_says_why(vc: Cluster, case: Case, launcher: str, tmp_path: Path) -> None:
    found = try_case(vc, case, launcher, tmp_path)
    assert not found.problem(case, launcher), found  # the time is for make test-faults
