"""Studies as a picture: speed-up and efficiency over ranks, with ideal lines and the fitted curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from runner.tools.scale.study import WEAK, Study
from runner.tools.tables.output import new_figure

_BEYOND = 8  # how many times the largest size the dashed lines reach
_POINTS = 24  # of the dashed lines


def plot(studies: Sequence[Study], names: Sequence[str], path: str) -> None:
    """Draw speed-up and efficiency of each study that has a size.

    Args:
        names: of the studies, in the legend.
    """
    figure, ((speed_up, efficiency),) = new_figure(1, 2, inches=(9.0, 4.4))
    measured = [(study, name) for study, name in zip(studies, names, strict=True) if study.measured]
    for number, (study, name) in enumerate(measured):
        _draw(speed_up, efficiency, study, f"{name}, {study.scaling}", f"C{number}")
    bases = {study.base.ranks for study, _ in measured if study.base}
    least, most = min(bases), max(size.ranks for study, _ in measured for size in study.measured)
    right = most * (_BEYOND if any(len(study.measured) > 2 for study, _ in measured) else 1)
    speed_up.plot([least, right], [1, right / least], color="gray", linewidth=1, label="ideal")
    efficiency.axhline(1.0, color="gray", linewidth=1)
    over = "" if bases == {1} else f" over {least} ranks"
    speed_up.set(ylabel=f"speed-up{over}")
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
    figure.supxlabel(_caption(studies), fontsize="x-small", color="#555555")
    figure.savefig(path)


def _draw(speed_up: Any, efficiency: Any, study: Study, name: str, color: str) -> None:
    rows, base, fit = study.measured, study.base, study.fit()
    assert base is not None
    ranks = [size.ranks for size in rows]
    for axis, of in ((speed_up, study.speed_up), (efficiency, study.efficiency)):
        values = [of(size) for size in rows]
        spread = [value * size.spread for value, size in zip(values, rows, strict=True)]
        axis.errorbar(ranks, values, yerr=spread, marker="o", capsize=3, color=color, label=name)
    if fit is None or len(rows) < 3:
        return
    beyond = [ranks[-1] * _BEYOND ** (step / _POINTS) for step in range(_POINTS + 1)]
    for axis, each in ((speed_up, 1.0), (efficiency, base.ranks)):
        work = [
            (n / base.ranks if study.scaling == WEAK else 1.0) * (1.0 if axis is speed_up else each / n) for n in beyond
        ]
        curve, low, high = (
            [one * base.seconds / seconds for one, seconds in zip(work, of_n, strict=True)]
            for of_n in zip(*((fit.seconds(n), *reversed(fit.interval(n))) for n in beyond), strict=True)
        )
        axis.plot(beyond, curve, linestyle="--", color=color)
        axis.fill_between(beyond, low, high, color=color, alpha=0.15, linewidth=0)


def _caption(studies: Sequence[Study]) -> str:
    """What was measured with what."""
    lines = []
    for study in studies:
        facts = study.facts
        hosts = facts.get("hosts", 0)
        hardware = f"{hosts} host{'s' * (hosts > 1)} of {facts['cores']} cores, {facts['device']}" if hosts else ""
        lines.append(", ".join(filter(None, [study.target, hardware, facts.get("versions"), facts.get("when")])))
        lines.append(study.command)
    return "\n".join(dict.fromkeys(filter(None, lines)))
