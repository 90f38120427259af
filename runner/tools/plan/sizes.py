"""Sizes of memory as people write them."""

from __future__ import annotations

import argparse
import re

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(text: str) -> int:
    """Bytes: ``80GB`` and ``80G`` are 80 × 10⁹, ``80GiB`` is 80 × 2³⁰; an argparse type."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", text.strip(), re.IGNORECASE)
    number = int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[(found[2] or "").upper()]) if found else 0
    if number == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of memory such as 80GB, 80GiB or 24G")
    return number


def size_text(number: float) -> str:
    """``512 B``, ``4.2 MB``, ``107 GB``: powers of 1000, as ``80GB`` is."""
    power = max((n for n in range(5) if number >= 1000**n), default=0)
    scaled = number / 1000**power
    return f"{scaled:.{0 if scaled >= 100 or not power else 1}f} {_UNITS[power]}"
