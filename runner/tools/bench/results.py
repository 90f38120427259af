"""The results of bench, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.base.quantities import size_text
from runner.tools.tables.plot import draw_line, new_figure, scale_by_two
from runner.tools.tables.table import Column, print_columns


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The times of one operation of one size by one backend. Times in seconds per call, of the slowest rank."""

    operation: str
    backend: str
    size: int  # bytes
    ranks: int
    hosts: int  # on which the ranks are
    seconds: float  # median over rounds
    fastest: float
    slowest: float
    mean: float  # over all rounds
    algorithm_bandwidth: float  # bytes/s
    bus_bandwidth: float  # bytes/s
    wrong: int  # elements


def print_results(found: list[Measurement], names: list[str]) -> None:
    """Print a table per operation."""
    first: dict[tuple[str, int], float] = {}
    for m in found:
        first.setdefault((m.operation, m.size), m.seconds)
    for name in dict.fromkeys(m.operation for m in found):
        rows = [m for m in found if m.operation == name]
        columns = [
            Column(title="size\n(B)", cells=[str(m.size) for m in rows]),
            Column(title="count\n", cells=[str(m.size // 4) for m in rows], spared=4),
            Column(title="backend\n", cells=[m.backend for m in rows], justify="left"),
            Column(title="time\n(µs)", cells=[f"{m.seconds * 1e6:.1f}" for m in rows]),
            Column(title="mean\n(µs)", cells=[f"{m.mean * 1e6:.1f}" for m in rows], spared=5),
            Column(
                title="fastest to\nslowest (µs)",
                cells=[f"{m.fastest * 1e6:.1f} to {m.slowest * 1e6:.1f}" for m in rows],
                spared=1,
            ),
            Column(title="algbw\n(GB/s)", cells=[f"{m.algorithm_bandwidth / 1e9:.3f}" for m in rows], spared=3),
            Column(title="busbw\n(GB/s)", cells=[f"{m.bus_bandwidth / 1e9:.3f}" for m in rows]),
            Column(title=f"{names[0]}\n÷", cells=[f"{first[(name, m.size)] / m.seconds:.2f}" for m in rows], spared=2),
            Column(title="#wrong\n", cells=[str(m.wrong) for m in rows]),
        ]
        print_columns(f"{name}, float32", columns)
        print()


def plot_results(found: Sequence[Measurement], path: str) -> None:
    """Draw a column per operation: bus bandwidth over size, with a band from the slowest to the fastest round."""
    names = list(dict.fromkeys(m.operation for m in found))
    figure, axes = new_figure(len(names), inches=(5.5 * len(names), 4.5))
    for axis, name in zip(axes, names, strict=True):
        for backend in dict.fromkeys(m.backend for m in found):
            points = [m for m in found if (m.operation, m.backend) == (name, backend)]
            median, low, high = (
                [m.bus_bandwidth * m.seconds / getattr(m, seconds) / 1e9 for m in points]
                for seconds in ("seconds", "slowest", "fastest")
            )
            draw_line(axis, [m.size for m in points], median, low, high, marker="o", label=backend)
        axis.set(title=f"{name}, {found[0].ranks} ranks", yscale="log")
        axis.set_ylabel("bus bandwidth (GB/s)\nmedian; band: all rounds")
        axis.yaxis.set_major_formatter("{x:g}")
        scale_by_two(axis, "size", [m.size for m in found], lambda size: size_text(size, 1024))
        axis.legend()
    figure.savefig(path)
