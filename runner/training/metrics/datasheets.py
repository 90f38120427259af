"""What GPUs can do at most, by their makers' data sheets. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """A GPU in the system that it usually is in. Operations are dense, and bandwidths one way.

    Attributes:
        half: operations per second in bf16 and fp16.
        single: in fp32, as torch multiplies by default: not in TF32.
        memory: bytes per second of its own memory.
        inside: bytes per second to the other GPUs of its host.
        between: bytes per second of its share of the host's adapters.
        source: of all of these.
    """

    half: float
    single: float
    memory: float
    inside: float
    between: float
    source: str

    def peak(self, precision: str) -> float:
        """Operations per second in fp32, bf16 or fp16."""
        return self.single if precision == "fp32" else self.half


SHEETS = {
    "A100": DataSheet(
        half=312e12,
        single=19.5e12,
        memory=2.039e12,
        inside=300e9,
        between=25e9,
        source="NVIDIA, A100 80GB SXM: NVLink 600 GB/s both ways; DGX A100: a 200 Gb/s adapter per GPU",
    ),
    "H100": DataSheet(
        half=989.5e12,
        single=67e12,
        memory=3.35e12,
        inside=450e9,
        between=50e9,
        source="NVIDIA, H100 SXM: NVLink 900 GB/s both ways; DGX H100: a 400 Gb/s adapter per GPU",
    ),
    "H200": DataSheet(
        half=989.5e12,
        single=67e12,
        memory=4.8e12,
        inside=450e9,
        between=50e9,
        source="NVIDIA, H200 SXM: NVLink 900 GB/s both ways; DGX H200: a 400 Gb/s adapter per GPU",
    ),
    "GH200": DataSheet(
        half=989.5e12,
        single=67e12,
        memory=4e12,
        inside=450e9,
        between=25e9,
        source="NVIDIA, GH200 with 96 GB: NVLink 900 GB/s both ways; Alps: a 200 Gb/s adapter per GPU",
    ),
    "MI250X": DataSheet(
        half=191.5e12,
        single=47.9e12,
        memory=1.6e12,
        inside=50e9,
        between=12.5e9,
        source="AMD, MI250X, half of it, as a rank has one of two dies; Frontier: 50 GB/s to the next package, a 200 Gb/s "
        "adapter per package",
    ),
    "MI300X": DataSheet(
        half=1307.4e12,
        single=163.4e12,
        memory=5.3e12,
        inside=448e9,
        between=50e9,
        source="AMD, MI300X: 7 links of 128 GB/s both ways; a 400 Gb/s adapter per GPU, as clouds have them",
    ),
}

# Operations per second in bf16 (on a V100, which has no bf16, in fp16), by words of the name that torch gives a device: makers' data
# sheets, SXM where there are two. The first that is in the name counts.
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
    **{name: sheet.half for name, sheet in SHEETS.items()},
}


def peak_of(name: str) -> float | None:
    """Operations per second of a device with such a name, in half precision; None if they are not known."""
    return next((peak for words, peak in _PEAKS.items() if re.search(rf"\b{words}\b", name)), None)
