"""What a long run says of itself."""

from __future__ import annotations

from tests.progress import line


def test_of_the_tests_that_run_the_longest_is_named() -> None:
    assert line({"a": 10.0, "b": 30.0}, 7, 100.0) == "tests left: 7; running: a (90 s) and 1 more"
    assert line({"b": 30.0}, 1, 31.0) == "tests left: 1; running: b (1 s)"
