"""Numbers, sizes, times and paths: how options are read (argparse types), and how results are printed.

A size is read as GNU's tools read it, in upper or lower case: ``64G`` (as for Slurm) and ``64GiB`` are 64 × 2³⁰ bytes,
``64GB`` is 64 × 10⁹, likewise K, M and T; a bare number is bytes. A time is either a number of seconds (``seconds``) or
written as for Slurm (``duration``), where a bare number is minutes.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

_LETTERS = "KMGT"
_UNITS = {1000: ("B", "kB", "MB", "GB", "TB"), 1024: ("B", "KiB", "MiB", "GiB", "TiB")}


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def positives(text: str) -> list[int]:
    """Whole numbers above 0, with commas between them."""
    return [positive(word) for word in text.split(",")]


def not_negative(text: str) -> int:
    """A whole number, 0 or above."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or above")
    return int(text)


def positive_float(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def nonempty_path(text: str) -> Path:
    """A path, not the empty text of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def size(text: str) -> int:
    """Bytes of ``512``, ``4K``, ``1.5GiB`` or ``80GB``."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*(?:([KMGT])(i?B?)|B?)", text.strip(), re.IGNORECASE)
    if found:
        base = 1000 if found[3] in ("B", "b") else 1024
        power = 1 + _LETTERS.index(found[2].upper()) if found[2] else 0
        if number := int(float(found[1]) * base**power):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512K, 64G (× 2³⁰) or 80GB (× 10⁹)")


def size_with_unit(text: str) -> int:
    """Bytes; a bare number is refused, because it is MB for Slurm and bytes for PBS."""
    if not text[-1:].isalpha():
        raise argparse.ArgumentTypeError(f"{text!r} is a size without its unit; for example 64G or 500M")
    return size(text)


def seconds(text: str) -> float:
    """A positive number of seconds, a year at most."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 366 * 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def duration(text: str) -> float:
    """Seconds, from a time as Slurm's ``--time`` takes it: MINUTES, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in parts) or (dash and not days.isdecimal()) or len(parts) > 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90 (minutes), 1:30:00 or 2-12:00:00")
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return 86400.0 * int(days or 0) + sum(unit * int(part) for unit, part in zip(units, parts, strict=False))


def time_limit(text: str) -> float:
    """A ``duration`` above 0."""
    if not (found := duration(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no time to run for; leave the limit out if there is none")
    return found


def full_duration(text: str) -> int:
    """Seconds of H:M:S or D-H:M:S; less is refused, because schedulers differ in it: 1:30 is minutes for Slurm, hours for LSF."""
    found = int(duration(text)) if re.fullmatch(r"(\d{1,3}-)?\d{1,4}:[0-5]\d:[0-5]\d", text) else 0
    if found == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time with its hours; for example 1:30:00 or 2-00:00:00")
    return found


def short_text(number: float) -> str:
    """``7``, ``4.2``, ``107``: a decimal below 100, unless the number is whole."""
    return f"{number:.{0 if number >= 99.95 or number % 1 == 0 else 1}f}"


def size_text(number: float, base: int = 1000) -> str:
    """``512 B``, ``4.2 MB``, ``107 GB``, or with base 1024 ``4 KiB``."""
    power = max((n for n in range(5) if number >= base**n), default=0)
    return f"{short_text(number / base**power)} {_UNITS[base][power]}"


def exact_size_text(number: int) -> str:
    """``64G``, ``1536M``: powers of 1024 with no remainder, as schedulers take them; rounded up to K."""
    amount, power = -(-number // 1024), 0
    while amount % 1024 == 0 and power < len(_LETTERS) - 1:
        amount, power = amount // 1024, power + 1
    return f"{amount}{_LETTERS[power]}"


def duration_text(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``, ``2.1 d``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def clock_text(seconds: float) -> str:
    """``0:05:00``, ``26:00:00``: H:MM:SS, which schedulers take, too."""
    whole = round(min(seconds, 1e9))  # a state file may say infinity
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
