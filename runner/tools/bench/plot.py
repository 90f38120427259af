"""Plot of bus bandwidth over size."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.quantities import size_text
from runner.tools.bench.measurement import Measurement
from runner.tools.tables.output import new_figure

_TICKS = 6  # on an axis 5.5 inches wide


def plot(found: Sequence[Measurement], path: str) -> None:
    """Draw a column per operation: bandwidth in GB/s with a band from the slowest to the fastest round."""
    names = list(dict.fromkeys(m.operation for m in found))
    backends = list(dict.fromkeys(m.backend for m in found))
    sizes = sorted({m.size for m in found})
    figure, axes = new_figure(1, len(names), inches=(5.5 * len(names), 4.5))
    for axis, name in zip(axes[0], names, strict=True):
        for number, backend in enumerate(backends):
            points = [m for m in found if (m.operation, m.backend) == (name, backend)]
            x = [m.size for m in points]
            style = {"color": f"C{number}"}
            axis.plot(x, [m.bus_bandwidth / 1e9 for m in points], marker="o", label=backend, **style)
            low = [m.bus_bandwidth * m.seconds / m.slowest / 1e9 for m in points]
            high = [m.bus_bandwidth * m.seconds / m.fastest / 1e9 for m in points]
            axis.fill_between(x, low, high, alpha=0.2, linewidth=0, **style)
        axis.set(title=f"{name}, {found[0].ranks} ranks", yscale="log")
        axis.set_ylabel("bus bandwidth (GB/s)\nmedian; band: all rounds")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.legend()
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes[:: -(-len(sizes) // _TICKS)], minor=False)
        axis.xaxis.set_major_formatter(lambda size, _: size_text(size, 1024))
        axis.grid(True, alpha=0.3)
        axis.set_xlabel("size")
    figure.savefig(path)
