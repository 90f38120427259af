"""Numbers in options, checked for their range; the functions are argparse types."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def not_negative(text: str) -> int:
    """A whole number, 0 or above."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or above")
    return int(text)


def duration(text: str) -> float:
    """Seconds, from a time as Slurm's ``--time`` takes it: MINUTES, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in parts) or (dash and not days.isdecimal()) or len(parts) > 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90 (minutes), 1:30:00 or 2-12:00:00")
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return 86400.0 * int(days or 0) + sum(unit * int(part) for unit, part in zip(units, parts, strict=False))


def positive_float(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
