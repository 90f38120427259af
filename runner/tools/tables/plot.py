"""Pictures of the tools: lines over x, and bars. matplotlib draws them without a display."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TICKS = 6  # on an axis of powers of two


def new_figure(columns: int, *, inches: tuple[float, float]) -> tuple[Figure, list[Any]]:
    """Return a figure of this width and height that needs no display, and its axes from left to right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def draw_line(
    axis: Any, x: Sequence[float], y: Sequence[float], low: Sequence[float], high: Sequence[float], **style: Any
) -> None:
    """Draw a line and the band around it, in one color."""
    (line,) = axis.plot(x, y, **style)
    axis.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def scale_by_two(axis: Any, label: str, ticks: Iterable[float], text: Callable[[float], str]) -> None:
    """Make x logarithmic, with some of the ticks, and draw a grid."""
    places = sorted(set(ticks))
    axis.set_xscale("log", base=2)
    axis.set_xticks(places[:: -(-len(places) // _TICKS)], minor=False)
    axis.xaxis.set_major_formatter(lambda x, _: text(x))
    axis.set_xlabel(label)
    axis.grid(True, alpha=0.3)


def draw_bars(axis: Any, names: Sequence[str], parts: Mapping[str, Sequence[float]], **style: Any) -> None:
    """Draw a bar per name, with its parts on top of one another. A part that is zero everywhere has no label."""
    below = [0.0] * len(names)
    for label, heights in parts.items():
        if any(heights):
            axis.bar(range(len(names)), heights, bottom=below, alpha=0.85, label=label, **style)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axis.set_xticks(range(len(names)), names)


def draw_limit(axis: Any, height: float, label: str) -> None:
    """Draw a dashed line across the bars."""
    axis.axhline(height, color="black", linestyle="--", linewidth=1, label=label)
