"""The peaks of GPUs, by the names that drivers give them."""

from __future__ import annotations

import pytest

from runner.training.metrics.speed import peak_of


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A40", 149.7),
        ("NVIDIA L40", 181.0),
        ("NVIDIA L40S", 362.0),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI250X", 191.5),  # of one of its two dies
        ("Tesla V100-SXM2-16GB", 125.0),
        ("NVIDIA RTX A4000", None),  # not an A40
        ("NVIDIA A10G", None),  # slower than an A10
        ("NVIDIA GB200", None),
    ],
)
def test_a_peak_is_that_of_the_whole_name(name: str, peak: float | None) -> None:
    assert peak_of(name) == (peak and pytest.approx(peak * 1e12))
