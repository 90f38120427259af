"""Samples per second of each engine, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.tools.output import new_figure

if TYPE_CHECKING:
    from runner.tools.compare.compare import Comparison


def plot(title: str, engines: Sequence[Comparison], alone: Comparison, path: str) -> None:
    """Draw a bar per engine, with the spread of its steps and its hidden share, and a line for ``alone``."""
    figure, axes = new_figure(1, 1, inches=(max(5.0, 1.5 + 1.3 * len(engines)), 4.5))
    axis = axes[0][0]
    names = [c.engine if c.hidden is None else f"{c.engine}\n{c.hidden:.0%} hidden" for c in engines]
    # A slow step is a low speed, so the percentiles swap.
    low = [c.samples_per_s * (1 - c.step / c.step_high) for c in engines]
    high = [c.samples_per_s * (c.step / c.step_low - 1) for c in engines]
    heights = [c.samples_per_s for c in engines]
    axis.bar(
        names, heights, yerr=[low, high], capsize=5, color="tab:blue", alpha=0.8, label="median step; 10 % to 90 %"
    )
    axis.axhline(alone.samples_per_s, color="gray", linestyle="--", linewidth=1, label="nothing exchanged")
    axis.set(title=title, ylabel="samples/s")
    axis.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)
