"""Samples per second of each engine as bars."""

from __future__ import annotations

from collections.abc import Sequence

from runner.tools.compare.comparison import Comparison
from runner.tools.tables.output import new_figure


def plot(title: str, engines: Sequence[Comparison], alone: Comparison, path: str) -> None:
    """Draw a bar per engine, with the spread of its steps, and a line for ``alone``."""
    names = [_in_lines(c.engine) for c in engines]
    each = max(1.3, 0.1 * max(len(line) for name in names for line in name.splitlines()))
    figure, axes = new_figure(1, 1, inches=(max(5.0, 1.5 + each * len(engines)), 4.5))
    axis = axes[0][0]
    # A slow step is a low speed, so the percentiles swap.
    low = [c.samples_per_s * (1 - c.step / c.step_high) for c in engines]
    high = [c.samples_per_s * (c.step / c.step_low - 1) for c in engines]
    heights = [c.samples_per_s for c in engines]
    axis.bar(
        names, heights, yerr=[low, high], capsize=5, color="tab:blue", alpha=0.8, label="median step; 10 % to 90 %"
    )
    axis.axhline(alone.samples_per_s, color="gray", linestyle="--", linewidth=1, label="nothing exchanged")
    axis.set(title=title, ylabel="samples/s")
    tops = [height + more for height, more in zip(heights, high, strict=True)]
    axis.set_ylim(0, 1.2 * max(*tops, alone.samples_per_s))  # the legend is above the bars
    axis.legend(loc="upper right", ncols=2, frameon=False)
    figure.savefig(path)


def _in_lines(name: str) -> str:
    """A long engine's name, for below its bar."""
    return name if len(name) < 16 else name.replace("+", "\n+").replace(":", "\n:")
