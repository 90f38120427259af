"""Pictures of a run as SVG within the page. Their colours are the page's, so that they are readable in the dark, too."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, _HEIGHT = 400, 210  # in the unit of the picture; a telephone shows it in about as many pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 34  # room around the plot
MOST_POINTS = 500  # of a curve
COLOURS = 6  # that the page has for curves
_MOST_ROWS = 64  # of a heat map; several ranks share a row where there are more
_HALF = 0.5  # the share of a step from which on a rank is drawn as late as can be
_WELL, _MIDDLE, _LATE, _OTHER = (38, 132, 140), (240, 150, 30), (204, 32, 20), (128, 128, 128)  # red, green, blue

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points in the order of x, with the number of a colour of the page; a y that is not finite is a gap."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    is_dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Where a number is drawn."""

    low: float
    high: float
    start: float
    length: float  # below zero: upwards

    def at(self, value: float) -> float:
        return self.start + self.length * (value - self.low) / (self.high - self.low)


def number_text(value: float) -> str:
    """``0.002``, ``1.2e-05``, ``12.5k``: short enough for an axis."""
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.3g}{letter}"
    return f"{value:.4g}" if abs(value) >= 1000 else f"{value:.3g}"


def time_text(seconds: float) -> str:
    """``45 s``, ``1.5 min``, ``2 h``, ``3 d``."""
    units = ((86400, "d", 172800), (3600, "h", 3600), (60, "min", 60), (1, "s", 0))
    unit, name = next((size, name) for size, name, least in units if seconds >= least)
    return f"{seconds / unit:.3g} {name}"


def chart(title: str, curves: Sequence[Curve], *, x: str, over_time: bool = False, from_zero: bool = False) -> str:
    """Curves with their axes; "" if there is no point. The axis of y is logarithmic where all is positive and spans three decades.

    Args:
        x: what that axis shows.
        over_time: x is in seconds.
        from_zero: whether the axis of y begins at 0.
    """
    thin = [(curve, thinned(curve.points)) for curve in curves]
    values = [point for _, points in thin for point in points if math.isfinite(point[1])]
    if not values:
        return ""
    ys = [y for _, y in values]
    is_log = not from_zero and min(ys) > 0 and max(ys) / min(ys) >= 1000
    across = _across([x for x, _ in values])
    up, marks = _log_scale(min(ys), max(ys)) if is_log else _scale(min(ys), max(ys), from_zero=from_zero)
    parts = [_axes(across, up, marks, x, time_text if over_time else number_text, is_log=is_log)]
    for curve, points in thin:
        height = (lambda y: up.at(math.log10(y))) if is_log else up.at
        dash = ' stroke-dasharray="5 3"' if curve.is_dashed else ""
        parts += [
            f'<path class="line c{curve.colour % COLOURS}"{dash} d="{one}"/>' for one in _paths(points, across, height)
        ]
    return _figure(title, "".join(parts), _legend([(one.label, one.colour, one.is_dashed) for one in curves]))


def stack(title: str, parts: Mapping[str, Sequence[float | None]], seconds: Sequence[float]) -> str:
    """Areas on top of one another, in milliseconds over time."""
    places = [place for place in range(len(seconds)) if any(row[place] is not None for row in parts.values())]
    if not places:
        return ""
    below = [0.0] * len(places)
    layers = []
    for label, row in parts.items():
        above = [one + (row[place] or 0.0) for one, place in zip(below, places, strict=True)]
        layers.append((label, below, above))
        below = above
    across = _across([0.0, *seconds])
    up, marks = _scale(0.0, max(below), from_zero=True)
    drawn = [_axes(across, up, marks, "time", time_text)]
    width = seconds[0]
    for number, (_, low, high) in enumerate(layers):
        for first, last in _runs(places):
            there = range(first, last + 1)
            edges = [(seconds[places[one]] - width, seconds[places[one]]) for one in there]
            top = [(at, high[one]) for one, edge in zip(there, edges, strict=True) for at in edge]
            bottom = [(at, low[one]) for one, edge in zip(there, edges, strict=True) for at in edge]
            points = " ".join(f"{across.at(at):.1f},{up.at(y):.1f}" for at, y in [*top, *reversed(bottom)])
            drawn.append(f'<polygon class="area c{number}" points="{points}"/>')
    return _figure(
        title, "".join(drawn), _legend([(label, number, False) for number, (label, _, _) in enumerate(layers)])
    )


def heat_map(
    title: str,
    rows: Mapping[int, Sequence[float | None]],
    seconds: Sequence[float],
    marks: Sequence[tuple[float, int]],
    legend: str,
) -> str:
    """Ranks from the top down, time from the left, colours from 0 to half a step; the largest of the ranks that share a row.

    Args:
        rows: by rank, a share of a step per bin of time; NaN: it does not train; None: unknown.
        marks: of failures, as seconds and rank.
        legend: what the colours show.
    """
    ranks = list(rows)
    group = max(1, math.ceil(len(ranks) / _MOST_ROWS))
    groups = [ranks[place : place + group] for place in range(0, len(ranks), group)]
    pixels = [[_largest([rows[rank][place] for rank in one]) for place in range(len(seconds))] for one in groups]
    tall = min(22, max(3, 260 // len(groups)))
    across = _across([0.0, *seconds])
    height = tall * len(groups)
    parts = [
        f'<image x="{_LEFT}" y="{_TOP}" width="{WIDTH - _LEFT - _RIGHT}" height="{height}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"/>'
        f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{WIDTH - _LEFT - _RIGHT}" height="{height}"/>'
    ]
    every = math.ceil(14 / tall)
    for place in range(0, len(groups), every):
        y = _TOP + tall * place + tall / 2 + 4
        parts.append(f'<text x="{_LEFT - 5}" y="{y:.1f}" text-anchor="end">{groups[place][0]}</text>')
    parts.append(_x_axis(across, _TOP + height, "time", time_text))
    where = {rank: place for place, one in enumerate(groups) for rank in one}
    for at, rank in marks:
        if rank in where and across.low <= at <= across.high:
            centre = f"{across.at(at):.1f} {_TOP + tall * where[rank] + tall / 2:.1f}"
            parts.append(
                f'<path class="mark" d="M{centre}m-4 -4l8 8m0 -8l-8 8"><title>rank {rank} failed</title></path>'
            )
    return _figure(title, "".join(parts), f'<p class="legend">{legend}</p>', height=_TOP + height + _BOTTOM)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most ``MOST_POINTS`` of them: the lowest and the highest of each part, so that a peak stays."""
    if len(points) <= MOST_POINTS:
        return list(points)
    parts = MOST_POINTS // 2 - 1
    found = [points[0]]
    for part in range(parts):
        here = points[part * len(points) // parts : (part + 1) * len(points) // parts]
        found += sorted({min(here, key=lambda one: one[1]), max(here, key=lambda one: one[1])})
    return [*found, points[-1]]


def _across(values: Sequence[float]) -> _Scale:
    low, high = min(values), max(values)
    return _Scale(low=low, high=high if high > low else low + 1, start=_LEFT, length=WIDTH - _LEFT - _RIGHT)


def _scale(low: float, high: float, *, from_zero: bool) -> tuple[_Scale, list[float]]:
    """The scale of y, and the numbers at it."""
    low = min(0.0, low) if from_zero else low
    if high <= low:
        room = abs(low) * 0.1 or 1.0
        low, high = (low, low + room) if from_zero else (low - room, low + room)
    step = _step((high - low) / 4)
    marks = [step * number for number in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]
    return _Scale(low=marks[0], high=marks[-1], start=_HEIGHT - _BOTTOM, length=_TOP - _HEIGHT + _BOTTOM), marks


def _log_scale(low: float, high: float) -> tuple[_Scale, list[float]]:
    """The same for logarithms to base 10."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    marks = [float(one) for one in range(first, last + 1, max(1, (last - first) // 4))]
    return _Scale(low=first, high=last, start=_HEIGHT - _BOTTOM, length=_TOP - _HEIGHT + _BOTTOM), marks


def _step(least: float) -> float:
    """The next of 1, 2, 2.5, 5, 10, … that is not smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= least * 0.999)


def _time_step(least: float) -> float:
    """The next usual span of time that is not smaller, in seconds."""
    usual = [float(unit * one) for unit in (1, 60) for one in (1, 2, 5, 10, 15, 30)]
    usual += [3600.0 * one for one in (1, 2, 3, 6, 12, 24, 48)]
    return next((one for one in usual if one >= least), 86400 * _step(least / 86400))


def _anchor(across: _Scale, at: float) -> str:
    """A number at the right end must not leave the picture."""
    return "end" if across.at(at) > WIDTH - _RIGHT - 12 else "middle"


def _axes(
    across: _Scale, up: _Scale, marks: Sequence[float], x: str, x_text: Callable[[float], str], *, is_log: bool = False
) -> str:
    lines = []
    for mark in marks:
        text = number_text(10.0**mark if is_log else mark)
        lines.append(
            f'<path class="grid" d="M{_LEFT} {up.at(mark):.1f}H{WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 5}" y="{up.at(mark) + 4:.1f}" text-anchor="end">{text}</text>'
        )
    return "".join(lines) + _x_axis(across, _HEIGHT - _BOTTOM, x, x_text)


def _x_axis(across: _Scale, y: float, x: str, text: Callable[[float], str]) -> str:
    step = _time_step if text is time_text else _step
    every = step((across.high - across.low) / 4)
    marks = [every * one for one in range(math.ceil(across.low / every), math.floor(across.high / every + 1e-9) + 1)]
    numbers = [
        f'<path class="grid" d="M{across.at(at):.1f} {y}v4"/>'
        f'<text x="{across.at(at):.1f}" y="{y + 15}" text-anchor="{_anchor(across, at)}">{text(at)}</text>'
        for at in marks
    ]
    middle = f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{y + 29}" text-anchor="middle">{escape(x)}</text>'
    return "".join(numbers) + middle


def _paths(points: Sequence[Point], across: _Scale, height: Callable[[float], float]) -> list[str]:
    """A path per part without a gap."""
    paths, here = [], list[str]()
    for x, y in [*points, (0.0, math.nan)]:
        if math.isfinite(y):
            here.append(f"{across.at(x):.1f} {height(y):.1f}")
        elif here:
            paths.append("M" + "L".join(here if len(here) > 1 else here * 2))  # a single point is a dot
            here = []
    return paths


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last index of each part in which the places follow one another."""
    ends = [one for one in range(len(places)) if one + 1 == len(places) or places[one + 1] != places[one] + 1]
    return list(zip([0, *(one + 1 for one in ends[:-1])], ends, strict=True))


def _largest(values: Sequence[float | None]) -> float | None:
    """Of ranks that share a row; NaN if none trains, None if nothing is known."""
    known = [one for one in values if one is not None]
    return max((one for one in known if not math.isnan(one)), default=math.nan if known else None)


def _colour(value: float | None) -> bytes:
    """Red, green, blue and opacity: what is well stays in the background."""
    if value is None:
        return bytes((0, 0, 0, 0))
    if math.isnan(value):
        return bytes((*_OTHER, 70))
    late = min(1.0, value / _HALF)
    below, above, part = (_WELL, _MIDDLE, 2 * late) if late < 0.5 else (_MIDDLE, _LATE, 2 * late - 1)
    mixed = (round(one + part * (other - one)) for one, other in zip(below, above, strict=True))
    return bytes((*mixed, round(90 + 165 * min(1.0, 2 * late))))


def _png(pixels: Sequence[Sequence[float | None]]) -> bytes:
    """A picture of some pixels (PNG, ISO/IEC 15948): RGBA, a filter byte 0 before each row."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 6, 0, 0, 0)
    rows = b"".join(b"\0" + b"".join(map(_colour, row)) for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def _legend(entries: Sequence[tuple[str, int, bool]]) -> str:
    """The names of several curves."""
    if len(entries) < 2:
        return ""
    keys = [
        f'<span class="entry"><span class="key{" dashed" if is_dashed else ""} c{colour % COLOURS}"></span>{escape(label)}</span>'
        for label, colour, is_dashed in entries
    ]
    return f'<p class="legend">{" ".join(keys)}</p>'


def _figure(title: str, content: str, legend: str, *, height: float = _HEIGHT) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{content}</svg>{legend}</figure>'
    )
