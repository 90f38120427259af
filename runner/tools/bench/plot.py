"""Plot of bus bandwidth over size, and of the overlap if it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from runner.quantities import size_text
from runner.tools.bench.busy import description
from runner.tools.bench.measurement import Measurement
from runner.tools.output import new_figure

_TICKS = 6  # on an axis 5.5 inches wide


def plot(found: Sequence[Measurement], path: str) -> None:
    """Draw a column per operation: bandwidth in GB/s with a band from the slowest to the fastest round, overlap in %."""
    names = list(dict.fromkeys(m.operation for m in found))
    backends = list(dict.fromkeys(m.backend for m in found))
    sizes = sorted({m.size for m in found})
    has_overlap = any(m.overlap is not None for m in found)
    rows = 1 + has_overlap
    with_loops = description(load=found[0].load, awake=found[0].awake)
    figure, axes = new_figure(rows, len(names), inches=(5.5 * len(names), 4.5 + 2.5 * has_overlap))
    for column, name in enumerate(names):
        for number, backend in enumerate(backends):
            points = [m for m in found if (m.operation, m.backend) == (name, backend)]
            x = [m.size for m in points]
            style = {"color": f"C{number}"}
            axes[0][column].plot(x, [m.bus_bandwidth / 1e9 for m in points], marker="o", label=backend, **style)
            low = [m.bus_bandwidth * m.seconds / m.slowest / 1e9 for m in points]
            high = [m.bus_bandwidth * m.seconds / m.fastest / 1e9 for m in points]
            axes[0][column].fill_between(x, low, high, alpha=0.2, linewidth=0, **style)
            hidden = [(m.size, 100 * m.overlap) for m in points if m.overlap is not None]
            if hidden:
                axes[1][column].plot(*zip(*hidden, strict=True), marker="o", label=backend, **style)
        axes[0][column].set(
            title="\n".join(filter(None, [f"{name}, {found[0].ranks} ranks", with_loops])), yscale="log"
        )
        axes[0][column].set_ylabel("bus bandwidth (GB/s)\nmedian; band: all rounds")
        axes[0][column].yaxis.set_major_formatter("{x:g}")
        axes[0][column].legend()
        if has_overlap:
            axes[1][column].set(ylabel="hidden behind\nmatrix products (%)", ylim=(-5, 105))
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes[:: -(-len(sizes) // _TICKS)], minor=False)
        axis.xaxis.set_major_formatter(lambda size, _: size_text(size, 1024))
        axis.grid(True, alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("size")
    figure.savefig(path)
