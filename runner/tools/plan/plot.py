"""The memory of each layout as stacked bars, and the limit as a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.base.quantities import size_text
from runner.tools.tables.output import new_figure

if TYPE_CHECKING:
    from runner.tools.plan.planning import Planned

_PARTS = {
    "parameters": "tab:blue",
    "gradients": "tab:orange",
    "optimizer": "tab:green",
    "activations": "tab:red",
    "gathered": "tab:purple",
}
_BARS = 24


def plot(title: str, plans: Sequence[Planned], limit: float, path: str) -> None:
    """Draw the first layouts, the best on the left."""
    shown = plans[:_BARS]
    unit, name = (1e9, "GB") if max(one.memory.total for one in shown) >= 1e8 else (1e6, "MB")
    figure, axes = new_figure(1, 1, inches=(max(8.0, 2.5 + 0.45 * len(shown)), 5.5))
    axis = axes[0][0]
    places, below = range(len(shown)), [0.0] * len(shown)
    for part, color in _PARTS.items():
        heights = [getattr(one.memory, part) / unit for one in shown]
        if any(heights):
            axis.bar(places, heights, bottom=below, color=color, alpha=0.85, label=part)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axis.axhline(limit / unit, color="black", linestyle="--", linewidth=1, label=f"limit: {size_text(limit)}")
    axis.margins(y=0.05)
    axis.set(title=title.replace(": ", "\n", 1), ylabel=f"memory per GPU ({name})")
    axis.set_xticks(places, [one.candidate.name for one in shown], rotation=60, ha="right", rotation_mode="anchor")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)
