"""A study as tables, on the terminal, as CSV and LaTeX, and as a picture: speed-up and efficiency over ranks."""

from __future__ import annotations

import csv
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tools.scale.fit import fit_of
from runner.tools.scale.study import WEAK, Size, Study
from runner.tools.tables.plot import draw_line, new_figure, scale_by_two
from runner.tools.tables.table import Column, print_columns

_NONE = "n/a"
_BEYOND = 8  # how many times the largest size the dashed lines reach
_POINTS = 24  # of the dashed lines


@dataclass(frozen=True)
class _Field:
    """A column: its name in a file, its title in a table, its text there, and how readily it is left out."""

    name: str
    title: str
    value: Callable[[Study, Size], Any]  # None: not known
    form: Callable[[Any], str] = str
    spared: int = 0

    def text(self, study: Study, size: Size) -> str:
        value = self.value(study, size)
        return _NONE if value is None else self.form(value)


def _two_decimals(value: float) -> str:
    return f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _speed(value: float) -> str:
    """Return a speed with four digits."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


_FIELDS = (
    _Field("ranks", "ranks\n", lambda _, size: size.ranks),
    _Field("hosts", "hosts\n", lambda _, size: size.hosts, spared=5),
    _Field("batch", "batch\n", lambda _, size: size.batch or None, spared=4),
    _Field("step_ms", "step\n(ms)", lambda _, size: 1e3 * size.seconds, _two_decimals),
    _Field("lowest_ms", "lowest\n(ms)", lambda _, size: 1e3 * min(size.rounds), _two_decimals, 1),
    _Field("highest_ms", "highest\n(ms)", lambda _, size: 1e3 * max(size.rounds), _two_decimals, 1),
    _Field("per_s", "samples\n/s", lambda _, size: size.speed, _speed),
    _Field("speed_up", "speed-\nup", lambda study, size: study.speed_up(size), _two_decimals),
    _Field("efficiency", "effi-\nciency", lambda study, size: study.efficiency(size), _percent),
    _Field("waiting_ms", "waiting for\ndata (ms)", lambda _, size: 1e3 * size.waiting, _two_decimals, 2),
    _Field("memory_MiB", "memory\n(MiB)", lambda _, size: size.memory / 2**20, lambda value: f"{value:.0f}", 3),
)


def _title(field: _Field, study: Study) -> str:
    return field.title if any(size.batch for size in study.measured) else field.title.replace("samples", "steps")


def print_study(study: Study) -> None:
    """Print the table, the curve, and what speaks against the rows."""
    rows, base = study.measured, study.base
    if base is not None:
        columns = [
            Column(title=_title(one, study), cells=[one.text(study, size) for size in rows], spared=one.spared)
            for one in _FIELDS
            if any(one.text(study, size) != _NONE for size in rows)
        ]
        print_columns(f"{study.target}, {study.scaling} scaling", columns)
        if base.ranks > 1:
            print(f"speed-up and efficiency are over {base.ranks} ranks, the smallest size that was measured")
    if (fit := fit_of(study.measured, weak=study.scaling == WEAK)) is not None:
        costs = f"c {1e3 * fit.c:.2f} ms, a {1e3 * fit.a:.2f} ms, b {1e3 * fit.b:.3f} ms"
        print(f"a step on n ranks takes about {'c' if fit.weak else 'c/n'} + a + b·n: {costs}")
        if fit.errors:
            errors = ", ".join(f"{ranks}: {error:+.1%}" for ranks, error in fit.errors)
            print(f"each size predicted from the others: {errors}")
    remarks: dict[str, list[str]] = {}
    for size in study.sizes:
        for text in filter(None, [size.problem and f"not measured: {size.problem}", *size.warnings]):
            remarks.setdefault(text, []).append(str(size.ranks))
    for text, concerned in remarks.items():
        print(f"{', '.join(concerned)} rank{'s' * (concerned != ['1'])}: {text}")


def write_study(study: Study, given: Namespace) -> None:
    """Write the files that are asked for."""
    if given.json:
        study.write(Path(given.json))
    if given.csv:
        write_csv(study, Path(given.csv))
    if given.latex:
        Path(given.latex).write_text(latex(study), encoding="utf-8")
    picture = given.plot if study.measured else None
    if picture:
        plot_studies([(study.target, study)], picture)
    for path in filter(None, (given.json, given.csv, given.latex, picture)):
        print(f"wrote {path}")


def write_csv(study: Study, path: Path) -> None:
    """Write numbers as they are, nothing where one is not known."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in _FIELDS])
        writer.writerows([field.value(study, size) for field in _FIELDS] for size in study.measured)


def latex(study: Study) -> str:
    """Return a table for the package booktabs."""
    titles = [_title(field, study).replace("-\n", "").replace("\n", " ").strip() for field in _FIELDS]
    rows = [[field.text(study, size) for field in _FIELDS] for size in study.measured]
    head, *body = (" & ".join(map(_escaped, row)) + r" \\" for row in [titles, *rows])
    begin = rf"\begin{{tabular}}{{{'r' * len(_FIELDS)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def _escaped(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")


def plot_studies(studies: Sequence[tuple[str, Study]], path: str) -> None:
    """Draw speed-up and efficiency of each study that has a size, with a name for the legend."""
    measured = [(name, study) for name, study in studies if study.measured]
    bases = {study.measured[0].ranks for _, study in measured}
    least, most = min(bases), max(size.ranks for _, study in measured for size in study.measured)
    right = most * (_BEYOND if any(len(study.measured) > 2 for _, study in measured) else 1)
    figure, (speed_up, efficiency) = new_figure(2, inches=(9.0, 4.4))
    for number, (name, study) in enumerate(measured):
        _draw(speed_up, study, per_rank=False, label=f"{name}, {study.scaling}", color=f"C{number}")
        _draw(efficiency, study, per_rank=True, color=f"C{number}")
    over = "" if bases == {1} else f" over {least} ranks"
    speed_up.plot([least, right], [1, right / least], color="gray", linewidth=1, label="ideal")
    speed_up.set_yscale("log", base=2)
    speed_up.yaxis.set_major_formatter("{x:g}")
    speed_up.set_ylabel(f"speed-up{over}")
    speed_up.legend(frameon=False)
    efficiency.axhline(1.0, color="gray", linewidth=1)
    efficiency.set(ylabel=f"efficiency{over}", ylim=(0, None))
    efficiency.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ticks = [2**power for power in range(int(math.log2(least)), int(math.log2(right)) + 1)]
    for axis in (speed_up, efficiency):
        scale_by_two(axis, "ranks; dashed: the fitted curve" if right > most else "ranks", ticks, "{:g}".format)
    figure.supxlabel(_caption([study for _, study in studies]), fontsize="x-small", color="#555555")
    figure.savefig(path)


def _draw(axis: Any, study: Study, *, per_rank: bool, **style: Any) -> None:
    """Draw a study's speed-ups, or its efficiencies, and those of the fitted curve, dashed."""
    rows, fit = study.measured, fit_of(study.measured, weak=study.scaling == WEAK)
    base, ranks = rows[0], [size.ranks for size in rows]
    values = [study.efficiency(size) if per_rank else study.speed_up(size) for size in rows]
    spread = [value * size.spread for value, size in zip(values, rows, strict=True)]
    axis.errorbar(ranks, values, yerr=spread, marker="o", capsize=3, **style)
    if fit is None or len(rows) < 3:
        return
    beyond = [ranks[-1] * _BEYOND ** (step / _POINTS) for step in range(_POINTS + 1)]
    works = [(n / base.ranks if fit.weak else 1.0) * (base.ranks / n if per_rank else 1.0) for n in beyond]
    times = zip(*((fit.seconds(n), *fit.interval(n)) for n in beyond), strict=True)
    curve, high, low = (
        [work * base.seconds / seconds for work, seconds in zip(works, own, strict=True)] for own in times
    )
    draw_line(axis, beyond, curve, low, high, linestyle="--", color=style["color"])


def _caption(studies: Sequence[Study]) -> str:
    """Return what was measured with what."""
    lines = []
    for study in studies:
        facts = study.facts
        hosts = facts.get("hosts", 0)
        hardware = f"{hosts} host{'s' * (hosts > 1)} of {facts['cores']} cores, {facts['device']}" if hosts else ""
        lines.append(", ".join(filter(None, [study.target, hardware, facts.get("versions"), facts.get("when")])))
        lines.append(study.command)
    return "\n".join(dict.fromkeys(filter(None, lines)))
