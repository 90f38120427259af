"""When a rank counts as a straggler."""

from __future__ import annotations

import pytest

from runner.training.metrics.stragglers import is_straggler


@pytest.mark.parametrize(
    ("times", "step", "slow"),
    [
        ([0.020, 0.020, 0.045, 0.021], 0.100, 2),
        ([0.020, 0.045], 0.100, 1),  # one of two
        ([0.045, 0.020], 0.100, 0),
        ([0.020, 0.029, 0.021, 0.020], 0.060, None),  # not half as long again
        ([0.020, 0.045, 0.020], 1.000, None),  # a small part of a step
        ([0.001, 0.004, 0.001], 0.010, None),  # some milliseconds
        ([0.045, 0.045, 0.044, 0.020], 0.100, None),  # one that is fast
    ],
)
def test_one_that_is_clearly_slower(times: list[float], step: float, slow: int | None) -> None:
    longest = max(times)
    usual = (sum(times) - longest) / (len(times) - 1)
    assert (times.index(longest) if is_straggler(longest, usual, step) else None) == slow
