"""Figures of the page: matplotlib draws them as SVG elements, which stand in the page itself."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.tools.report.folder import Points
from runner.tools.report.ranks import Array, RankTimes, largest
from runner.tools.tables.plot import new_figure

_INCHES = (5.0, 3.0)
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "report",  # the same run gives the same page
    "text.parse_math": False,  # a name may have a $
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
    "legend.frameon": False,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_OUTER_IDS = re.compile(r' id="[A-Za-z0-9.]+_\d+"')  # matplotlib numbers them in each figure anew
_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}  # of a time axis
_DOTS = 30  # a curve of fewer points shows each
_LOGARITHMIC = 1000  # ratio of the largest value to the smallest from which on an axis is logarithmic
_MOST_ROWS = 64  # of a heat map; more ranks share rows
_VERY_LATE = 50  # % of a step


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a chart."""

    label: str
    points: Points
    color: str
    is_dashed: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure in the page."""

    title: str
    svg: str


def chart(title: str, curves: Sequence[Curve], *, over_time: bool = False, from_zero: bool = False) -> Figure:
    """Draw curves by step, or by time if x is in seconds."""
    values = [y for curve in curves for _, y in curve.points]
    is_log = not from_zero and min(values) > 0 and max(values) / min(values) >= _LOGARITHMIC
    unit, label = _time_axis(max(x for curve in curves for x, _ in curve.points)) if over_time else (1.0, "step")

    def draw(axis: Any) -> None:
        for curve in curves:
            axis.plot(
                [x / unit for x, _ in curve.points],
                [y for _, y in curve.points],
                color=curve.color,
                label=f" {curve.label}",  # matplotlib leaves out a label that begins with _
                linestyle="--" if curve.is_dashed else "-",
                linewidth=1.2,
                marker="." if len(curve.points) < _DOTS else "",
            )
        axis.set_xlabel(label)
        if is_log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
        if from_zero:
            axis.set_ylim(bottom=0)
        if len(curves) > 1:
            axis.figure.legend(loc="outside lower center", ncols=2)

    return _figure(title, draw)


def stack(title: str, parts: Mapping[str, Array], seconds: Array) -> Figure:
    """Draw parts of a step on top of one another over time."""
    unit, label = _time_axis(float(seconds[-1]))
    is_known = np.any([np.isfinite(part) for part in parts.values()], axis=0)
    rows = [np.where(is_known, np.nan_to_num(part), np.nan) for part in parts.values()]

    def draw(axis: Any) -> None:
        axis.stackplot(seconds / unit, rows, labels=list(parts), alpha=0.8, step="pre")
        axis.set(xlabel=label, ylim=(0, None))
        axis.figure.legend(loc="outside lower center", ncols=2)

    return _figure(title, draw)


def heat_map(title: str, times: RankTimes, failures: Sequence[tuple[float, int]]) -> Figure:
    """Draw how late each rank is over time.

    Args:
        failures: seconds and rank of each.
    """
    ranks = times.ranks
    unit, label = _time_axis(float(times.seconds[-1]))
    rows = [largest(100 * one) for one in np.array_split(times.lateness(), min(len(ranks), _MOST_ROWS))]
    right = max(float(times.seconds[-1]), 1e-3) / unit

    def draw(axis: Any) -> None:
        import matplotlib

        colors = matplotlib.colormaps["YlOrRd"].resampled(10).with_extremes(under="0.85")
        area = (0, right, len(ranks) - 0.5, -0.5)
        image = axis.imshow(
            rows, cmap=colors, vmin=0, vmax=_VERY_LATE, aspect="auto", interpolation="none", extent=area
        )
        axis.figure.colorbar(image, label="late (% of a step); grey: no training", extend="max")
        places = [(at / unit, ranks.index(rank)) for at, rank in failures if rank in ranks]
        axis.plot([at for at, _ in places], [place for _, place in places], "kx", clip_on=False)
        axis.set(xlabel=label, ylabel="rank", xlim=area[:2], ylim=area[2:])
        axis.yaxis.get_major_locator().set_params(integer=True)
        axis.yaxis.set_major_formatter(lambda at, _: str(ranks[int(at)]) if 0 <= at < len(ranks) else "")
        axis.grid(visible=False)

    return _figure(title, draw)


def _time_axis(seconds: float) -> tuple[float, str]:
    """Return the unit for a time axis of this length, in seconds, and the label of the axis."""
    name, unit = next((one for one in _UNITS.items() if seconds >= 2 * one[1]), ("seconds", 1))
    return unit, f"time ({name})"


def _figure(title: str, draw: Callable[[Any], None]) -> Figure:
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about letters that matplotlib's font lacks and the browser's has
        figure, (axis,) = new_figure(1, inches=_INCHES)
        draw(axis)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    text = written.getvalue()
    return Figure(title, _OUTER_IDS.sub("", text[text.index("<svg") :]))
