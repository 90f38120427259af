"""Which targets' ranks share one import of torch."""

from __future__ import annotations

import pytest

from runner.options.command import parse
from runner.starting.sharing import found_target, why_not_for_target
from runner.tools.registry import summaries


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("bench", ""),
        ("compare workloads.mnist", ""),
        ("workloads.mnist", ""),
        ("explain", "explain needs no torch"),
        ("--no-python ls", "the target is no Python program"),
        ("missing.py", "the target cannot be run"),
    ],
)
def test_tools_that_need_torch_share_it_as_programs_do(words: str, why: str) -> None:
    request = parse(words.split(), summaries())
    assert why_not_for_target(request, lambda: found_target(request)) == why
