"""Numbers, sizes and times, as options take them and as results show them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.quantities import (
    clock_text,
    duration,
    duration_text,
    exact_size_text,
    full_duration,
    not_negative,
    positive,
    positive_float,
    seconds,
    short_text,
    size,
    size_text,
    size_with_unit,
)


@pytest.mark.parametrize(
    ("read", "text", "number"),
    [
        (size, "1000", 1000),
        (size, "8B", 8),
        (size, "4k", 4096),
        (size, "24G", 24 * 2**30),
        (size, "80GiB", 80 * 2**30),
        (size, "80GB", 80e9),
        (size, "1.5tb", 1.5e12),
        (size_with_unit, "512 MiB", 2**29),
        (seconds, "0.5", 0.5),
        (duration, "90", 5400),
        (duration, "1:30", 90),
        (duration, "1:30:00", 5400),
        (duration, "2-12", 60 * 3600),
        (duration, "1-02:03", 93780),
        (duration, "1-02:03:04", 93784),
        (full_duration, "1:30:00", 5400),
        (full_duration, "1-02:03:04", 93784),
        (not_negative, "0", 0),
    ],
)
def test_quantities_are_read(read: Callable[[str], float], text: str, number: float) -> None:
    assert read(text) == number


@pytest.mark.parametrize(
    ("read", "texts", "why"),
    [
        (size, ["", "GB", "80XB", "80iB", "-1G", "0G", "80 G B", "8O GB", "1e3", "9" * 400], "is not a size such as"),
        (size_with_unit, ["64", "1.5"], "is a size without its unit"),
        (size_with_unit, ["0G", "64X"], "is not a size such as"),
        (seconds, ["", "0", "-1", "nan", "inf", "1:30", "32000000", "1e300"], "is not a positive number of seconds"),
        (duration, ["", "1:", "-1", "1:2:3:4", "1.5", "UNLIMITED"], "is not a time such as"),
        (full_duration, ["60", "1:30", "1-2", "0:00:00", "1:60:00", "10000:00:00"], "is not a time with its hours"),
        (positive, ["0", "-1", "1.5", "two", ""], "is not a whole number above 0"),
        (not_negative, ["-1", "1.5", ""], "is not a whole number, 0 or above"),
        (positive_float, ["0", "-1", "nan", "inf", "x"], "is not a number above 0"),
    ],
)
def test_what_is_none_is_refused(read: Callable[[str], float], texts: list[str], why: str) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=why):
            read(text)


@given(st.integers(1, 10**15), st.sampled_from([1000, 1024]))
def test_a_printed_size_reads_as_nearly_the_same(number: int, base: int) -> None:
    assert size(size_text(number, base)) == pytest.approx(number, rel=0.051)


@given(st.integers(1, 10**15))
def test_a_size_for_a_scheduler_reads_as_the_same_in_whole_kib(number: int) -> None:
    assert number <= size(exact_size_text(number)) < number + 1024


@given(st.integers(1, 999 * 86400))
def test_a_clock_reads_as_the_same_time(number: int) -> None:
    text = clock_text(number)
    assert duration(text) == number
    if number < 9999 * 3600:
        assert full_duration(text) == number


def binary_size_text(number: float) -> str:
    return size_text(number, 1024)


@pytest.mark.parametrize(
    ("show", "texts"),
    [
        (short_text, {0: "0", 4.25: "4.2", 12.0: "12", 99.96: "100"}),
        (size_text, {0: "0 B", 999: "999 B", 4.2e6: "4.2 MB", 72e9: "72 GB", 1e17: "100000 TB"}),
        (binary_size_text, {1023: "1023 B", 4096: "4 KiB", 1.5 * 2**20: "1.5 MiB"}),
        (exact_size_text, {1: "1K", 2**36: "64G", 3 * 2**29: "1536M", 30 * 10**9: "29296875K"}),
        (duration_text, {0: "0 s", 99: "99 s", 100: "2 min", 5000: "83 min", 6000: "1.7 h", 2e5: "2.3 d"}),
        (clock_text, {0: "0:00:00", 93783.6: "26:03:04", float("inf"): "277777:46:40"}),
    ],
)
def test_quantities_are_shown(show: Callable[[Any], str], texts: dict[float, str]) -> None:
    assert {number: show(number) for number in texts} == texts
