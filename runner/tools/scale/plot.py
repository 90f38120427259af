"""Studies as a picture: speed-up and efficiency over ranks with ideal lines, and what a step's time goes into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from runner.measuring.facts import hardware_text
from runner.tools.costs.study import STRONG, WEAK, Size, Study
from runner.tools.report.output import new_figure

_PARTS = (  # of a step: field of a row, label, colour
    ("compute", "computing", "#4c8ed9"),
    ("exposed", "exposed communication", "#f0a13c"),
    ("waiting", "waiting for data", "#4fae5b"),
)
_REST = ("other", "#d9d9d9")
_BEYOND = 8  # how many times the largest size the dashed lines reach
_POINTS = 24  # of the dashed lines
_WIDTH, _ROW = 11.0, 3.6  # inches


def plot(studies: Sequence[Study], names: Sequence[str], path: str) -> None:
    """Draw a row per kind of scaling that was measured: speed-up, efficiency, and the parts of a step of each study.

    Args:
        names: of the studies, in the legends.
    """
    scalings = [scaling for scaling in (STRONG, WEAK) if any(study.measured(scaling) for study in studies)]
    figure, axes = new_figure(len(scalings), 3, inches=(_WIDTH, _ROW * len(scalings) + 0.8))
    for scaling, (speed_up, efficiency, parts) in zip(scalings, axes, strict=True):
        having = [
            (study, name, number)
            for number, (study, name) in enumerate(zip(studies, names, strict=True))
            if study.measured(scaling)
        ]
        for study, name, number in having:
            _draw_curves(speed_up, efficiency, study, scaling, name, f"C{number}")
        _finish_curves(speed_up, efficiency, [study for study, *_ in having], scaling)
        _draw_parts(parts, having, scaling)
    figure.supxlabel(_caption(studies), fontsize="x-small", color="#555555")
    figure.savefig(path)


def _draw_curves(speed_up: Any, efficiency: Any, study: Study, scaling: str, name: str, color: str) -> None:
    rows, base = study.measured(scaling), study.base(scaling)
    assert base is not None
    ranks = [size.ranks for size in rows]
    for axis, of in ((speed_up, study.speed_up), (efficiency, study.efficiency)):
        values = [of(size) for size in rows]
        spread = [value * size.uncertainty / size.seconds for value, size in zip(values, rows, strict=True)]
        axis.errorbar(ranks, values, yerr=spread, marker="o", capsize=3, color=color, label=name)
    fit = study.fit(scaling)
    if fit is None or len(rows) < 3:
        return
    beyond = [ranks[-1] * _BEYOND ** (step / _POINTS) for step in range(_POINTS + 1)]
    grown = (lambda n: n / base.ranks) if scaling == WEAK else (lambda _: 1.0)
    expected = [grown(n) * base.seconds / fit.seconds(n) for n in beyond]
    low, high = zip(
        *([grown(n) * base.seconds / edge for edge in reversed(fit.interval(n))] for n in beyond), strict=True
    )
    for axis, divide in ((speed_up, lambda _: 1.0), (efficiency, lambda n: n / base.ranks)):
        by = [divide(n) for n in beyond]
        axis.plot(beyond, [y / d for y, d in zip(expected, by, strict=True)], linestyle="--", color=color)
        axis.fill_between(
            beyond, [y / d for y, d in zip(low, by, strict=True)], [y / d for y, d in zip(high, by, strict=True)],
            color=color, alpha=0.15, linewidth=0,
        )  # fmt: skip


def _finish_curves(speed_up: Any, efficiency: Any, studies: Sequence[Study], scaling: str) -> None:
    bases = {base.ranks for study in studies if (base := study.base(scaling)) is not None}
    least, most = min(bases), max(size.ranks for study in studies for size in study.measured(scaling))
    right = most * (_BEYOND if any(len(study.measured(scaling)) > 2 for study in studies) else 1)
    speed_up.plot([least, right], [1, right / least], color="gray", linewidth=1, label="ideal")
    efficiency.axhline(1.0, color="gray", linewidth=1)
    over = "" if bases == {1} else f" over {least} ranks"
    batch = batches([size for study in studies for size in study.measured(scaling)])
    speed_up.set(title=f"{scaling} scaling{batch and f', batch {batch}'}", ylabel=f"speed-up{over}", yscale="log")
    speed_up.set_yscale("log", base=2)
    efficiency.set(ylabel=f"efficiency{over}", ylim=(0, None))
    efficiency.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ticks = [2**power for power in range(int(math.log2(least)), int(math.log2(right)) + 1)]
    for axis in (speed_up, efficiency):
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks[:: max(1, len(ticks) // 6)], minor=False)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("ranks; dashed: the fitted curve" if right > most else "ranks")
        axis.grid(True, alpha=0.3)
    speed_up.yaxis.set_major_formatter("{x:g}")
    speed_up.legend(frameon=False)


def _draw_parts(axis: Any, having: Sequence[tuple[Study, str, int]], scaling: str) -> None:
    """A bar per size, of all studies beside one another."""
    rows = [(size, name) for study, name, _ in having for size in study.measured(scaling)]
    several = len(having) > 1
    labels = [f"{size.ranks}\n{name}" if several else str(size.ranks) for size, name in rows]
    places = range(len(rows))
    bottom = [0.0] * len(rows)
    for field, label, color in _PARTS:
        heights = [1e3 * (getattr(size, field) or 0.0) for size, _ in rows]
        axis.bar(places, heights, bottom=bottom, label=label, color=color)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    rest = [max(0.0, 1e3 * size.seconds - low) for (size, _), low in zip(rows, bottom, strict=True)]
    axis.bar(places, rest, bottom=bottom, label=_REST[0], color=_REST[1])
    axis.set_xticks(list(places), labels, fontsize="small")
    axis.set(ylabel="a step (ms)", xlabel="ranks")
    axis.set_ylim(0, 1.35 * max(low + high for low, high in zip(bottom, rest, strict=True)))
    axis.legend(frameon=False, fontsize="x-small", ncols=2, loc="upper center", columnspacing=0.8, handlelength=1.2)


def _caption(studies: Sequence[Study]) -> str:
    """What was measured with what."""
    lines = []
    for study in studies:
        facts = study.facts
        parts = [study.target, hardware_text(facts), facts.get("versions", ""), facts.get("when", "")]
        lines.append(", ".join(filter(None, parts)))
        if study.command:
            lines.append(study.command)
    return "\n".join(dict.fromkeys(lines))


def batches(sizes: Sequence[Size]) -> str:
    """The batches of rows, from the least to the most."""
    known = [size.batch for size in sizes if size.batch]
    return f"{min(known)} to {max(known)}" if known and min(known) < max(known) else str(known[0]) if known else ""
