"""make conformance: a few of PyTorch's own tests on mpi4py, and that no test can stop the others or pass for another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.campaigns.conformance.jobs import IN_GLOOS_PLACE, Plan, run
from tests.campaigns.conformance.mpis import MPIS
from tests.campaigns.conformance.outcome import FAILED, PASSED, SKIPPED, Outcome, Outcomes
from tests.campaigns.conformance.page import brief, complaints, page, summary
from tests.launching import ROOT
from tests.launching import run as run_command

pytestmark = pytest.mark.needs("mpi4py")

QUICK = (
    *("test_get_rank", "test_broadcast", "test_all_reduce_sum", "test_all_gather", "test_barrier_timeout_full_group"),
    *("test_all_gather_object_subgroup", "test_sparse_all_reduce_sum", "test_isend_torch_profiler", "test_irecv"),
    *("test_send_recv_any_source_autograd_profiler", "test_monitored_barrier_gloo", "test_ddp_create_graph"),
)


def run_on_mpi4py(suite: str, names: tuple[str, ...], limit: float, logs: Path, *, ranks: int) -> Outcomes:
    plan = Plan(mpi=MPIS["openmpi"], options=IN_GLOOS_PLACE, suite=suite, ranks=ranks, logs=logs)
    return dict(run(plan, dict.fromkeys(names, limit)))


def test_a_few_of_torchs_own_tests_pass(tmp_path: Path) -> None:
    found = run_on_mpi4py("tests.campaigns.conformance.torch_tests", QUICK, 30, tmp_path, ranks=3)
    assert {name: outcome.reason for name, outcome in found.items() if outcome.status != PASSED} == {}
    assert set(found) == set(QUICK)


def test_a_test_that_fails_hangs_or_ends_its_process_does_not_stop_the_others(tmp_path: Path) -> None:
    # Three jobs, as each failure ends one and the last test is one.
    expected = {
        "sums": (PASSED, ""),
        "is_skipped": (SKIPPED, "not for this machine"),
        "is_alone_in_its_environment": (PASSED, ""),
        "raises_on_rank_1": (FAILED, "rank 1: ValueError: on purpose"),
        "hangs": (FAILED, "no end within 2 s"),
        "sums_again": (PASSED, ""),
        "is_alone_again": (PASSED, ""),
        "ends_the_process": (FAILED, "the job ended, exit code 7"),
    }
    found = run_on_mpi4py("tests.campaigns.conformance.rehearsal", tuple(expected), 2, tmp_path, ranks=2)
    assert {name: (outcome.status, outcome.reason) for name, outcome in found.items()} == expected
    assert "and in two lines" in (tmp_path / "raises_on_rank_1.txt").read_text()
    stacks = (tmp_path / "hangs.txt").read_text()
    assert all(f"== stacks-{rank}" in stacks for rank in range(2))
    assert "in hangs" in stacks
    assert not (tmp_path / "sums.txt").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--test nothing", "TEST=nothing is in none of the 8 names; for example TEST=sums"),
        ("--test (", "TEST=( is no regular expression"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options: str, message: str) -> None:
    command = f"-m tests.campaigns.conformance --suite tests.campaigns.conformance.rehearsal {options}"
    done = run_command(sys.executable, *command.split(), cwd=ROOT)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def outcomes(**statuses: str) -> Outcomes:
    return {name: Outcome(status=status, reason="" if status == PASSED else "why") for name, status in statuses.items()}


GLOO = outcomes(one=PASSED, two=PASSED, three=FAILED, four=SKIPPED)
ALL = list(GLOO)


@pytest.mark.parametrize(
    ("mpi", "left_out", "wrong"),
    [
        (outcomes(one=PASSED, two=PASSED), {}, []),
        (outcomes(one=PASSED, two=FAILED), {}, ["MPICH: two: why"]),
        (outcomes(one=PASSED, two=SKIPPED), {}, ["MPICH: two: why"]),  # gloo was not let off
        (outcomes(one=PASSED, two=FAILED), {"two": "…"}, []),
        (outcomes(one=PASSED, two=PASSED), {"two": "…"}, ["left_out.py: two passes; take it out of the list"]),
        (
            outcomes(one=PASSED, two=PASSED),
            {"six": "…"},
            ["left_out.py: there is no test six; take it out of the list"],
        ),
    ],
)
def test_what_is_wrong(mpi: Outcomes, left_out: dict[str, str], wrong: list[str]) -> None:
    assert complaints(GLOO, {"MPICH": mpi}, left_out, ALL) == wrong


def test_a_known_exception_may_pass_on_one_mpi_of_two() -> None:
    by_mpi = {"MPICH": outcomes(one=PASSED, two=FAILED), "Intel MPI": outcomes(one=PASSED, two=PASSED)}
    assert complaints(GLOO, by_mpi, {"two": "…"}, ALL) == []


def test_nothing_compared_is_no_success() -> None:
    (line,) = complaints(outcomes(one=SKIPPED), {"MPICH": {}}, {}, ["one"])
    assert "nothing was compared" in line


def test_the_page() -> None:
    by_mpi = {"MPICH 5.0": outcomes(one=PASSED, two=FAILED)}
    assert summary(GLOO, by_mpi, {"two": "…"}) == ["MPICH 5.0: 1 of the 2 tests that gloo passes; 1 left out"]
    text = page(GLOO, by_mpi, {}, 3, [])
    assert "| test | gloo | MPICH 5.0 |\n|---|---|---|\n" in text
    assert "everywhere\n\n* one\n" in text
    assert "| three | failed | not run |" in text
    assert "| two | ✓ | failed |" in text
    assert "| four |" not in text  # not for this machine
    assert "gloo itself: 2 passed, 1 failed, 1 skipped by" in text
    text = brief(GLOO, by_mpi, {"two": "it asks for gloo"}, [])
    assert "| groups, ranks, names | 2 | 1 |" in text
    assert "Left out: `two`: it asks for gloo." in text
