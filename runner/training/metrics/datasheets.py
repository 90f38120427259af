"""The peak performance of GPUs, by their makers' data sheets. Imports no torch."""

from __future__ import annotations

import re

# Operations per second in bf16, dense (on a V100, which has no bf16, in fp16), by words of the name that torch gives a device: makers' data
# sheets, SXM where there are two. The first that is in the name counts. Of an MI250X half, as a rank has one of its two dies.
_PEAKS = {
    "B200": 2250e12,
    "H100 PCIe": 756.5e12,
    "H100 NVL": 835.5e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A40": 149.7e12,
    "A10": 125e12,
    "V100": 125e12,
    "A100": 312e12,
    "H100": 989.5e12,
    "H200": 989.5e12,
    "GH200": 989.5e12,
    "MI250X": 191.5e12,
    "MI300X": 1307.4e12,
}


def peak_of(name: str) -> float | None:
    """Operations per second of a device with such a name, in half precision; None if they are not known."""
    return next((peak for words, peak in _PEAKS.items() if re.search(rf"\b{words}\b", name)), None)
