"""Pictures of the tools. matplotlib draws them without a display."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
