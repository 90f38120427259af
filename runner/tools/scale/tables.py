"""A study as tables: on the terminal, as CSV and LaTeX."""

from __future__ import annotations

import csv
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tools.costs.study import STRONG, WEAK, Size, Study
from runner.tools.report.table import Column, print_columns

_NONE = "n/a"


@dataclass(frozen=True)
class _Field:
    """A column: its name in a file, where it is a number as it is; its title in a table, its text there, and how readily it is left out.

    Without a name it is in no file, without a title in no table.
    """

    name: str
    title: str
    value: Callable[[Study, Size], Any]  # None: not known
    form: Callable[[Any], str] = str
    spared: int = 0

    def text(self, study: Study, size: Size) -> str:
        value = self.value(study, size)
        return _NONE if value is None else self.form(value)


def _milliseconds(of: Callable[[Size], float | None]) -> Callable[[Study, Size], float | None]:
    return lambda _, size: None if (value := of(size)) is None else 1e3 * value


def _two_decimals(value: float) -> str:
    return f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _speed(value: float) -> str:
    """With four digits."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _interval(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{_speed(low)} to {_speed(high)}" if math.isfinite(high) else f"over {_speed(low)}"


FIELDS = (
    _Field("scaling", "scaling\n", lambda _, size: size.scaling, spared=8),
    _Field("ranks", "ranks\n", lambda _, size: size.ranks),
    _Field("hosts", "hosts\n", lambda _, size: size.hosts, spared=7),
    _Field("batch", "batch\n", lambda _, size: size.batch or None, spared=6),
    _Field("step_ms", "step\n(ms)", _milliseconds(lambda size: size.seconds), _two_decimals),
    _Field("per_s", "samples\n/s", lambda _, size: size.speed, _speed),
    _Field("", "95 %\n", lambda _, size: size.speed_interval if len(size.rounds) > 1 else None, _interval, 3),
    _Field("per_s_low", "", lambda _, size: size.speed_interval[0]),
    _Field("per_s_high", "", lambda _, size: size.speed_interval[1]),
    _Field("speed_up", "speed-\nup", lambda study, size: study.speed_up(size), _two_decimals),
    _Field("efficiency", "effi-\nciency", lambda study, size: study.efficiency(size), _percent),
    _Field("compute_ms", "computing\n(ms)", _milliseconds(lambda size: size.compute), _two_decimals, 2),
    _Field("exposed_ms", "exposed\ncomm. (ms)", _milliseconds(lambda size: size.exposed), _two_decimals, 2),
    _Field("waiting_ms", "waiting for\ndata (ms)", _milliseconds(lambda size: size.waiting), _two_decimals, 4),
    _Field("one_batch_ms", "with one\nbatch (ms)", _milliseconds(lambda size: size.without_data), _two_decimals, 6),
    _Field("imbalance_ms", "imbalance\n(ms)", _milliseconds(lambda size: size.imbalance), _two_decimals, 5),
    _Field("memory_MiB", "memory\n(MiB)", lambda _, size: size.memory / 2**20, lambda value: f"{value:.0f}", 5),
    _Field("busy", "busy\n", lambda _, size: size.busy, _percent, 6),
    _Field(
        "joules_per_sample",
        "J per\nsample",
        lambda _, size: None if size.joules is None or not size.batch else size.joules / size.batch,
        lambda value: f"{value:.3g}",
        6,
    ),
)


def _title(field: _Field, rows: Sequence[Size]) -> str:
    return field.title if any(size.batch for size in rows) else field.title.replace("samples", "steps")


def print_study(study: Study) -> None:
    """Print a table per kind of scaling, what speaks against its rows, and the curve."""
    for scaling in (STRONG, WEAK):
        rows = study.measured(scaling)
        if rows:
            print_columns(
                f"{study.target}, {scaling} scaling",
                [
                    Column(
                        title=_title(field, rows), cells=[field.text(study, size) for size in rows], spared=field.spared
                    )
                    for field in FIELDS[1:]
                    if field.title and any(field.text(study, size) != _NONE for size in rows)
                ],
            )
        base = study.base(scaling)
        if base is not None and base.ranks > 1:
            print(f"speed-up and efficiency are over {base.ranks} ranks, the smallest size that was measured")
        if (fit := study.fit(scaling)) is not None:
            law = "c" if fit.weak else "c/n"
            print(
                f"a step on n ranks takes about {law} + a + b·n: c {1e3 * fit.c:.2f} ms, a {1e3 * fit.a:.2f} ms, b {1e3 * fit.b:.3f} ms"
            )
            if fit.errors:
                print(
                    "each size predicted from the others: " + ", ".join(f"{n}: {error:+.1%}" for n, error in fit.errors)
                )

    for text, concerned in _remarks(study).items():
        print(f"{', '.join(concerned)}: {text}")


def _remarks(study: Study) -> dict[str, list[str]]:
    """What is to be said of rows, and of which."""
    found: dict[str, list[str]] = {}
    for size in study.sizes:
        what = "not all was measured" if size.rounds else "not measured"
        for text in filter(None, [size.problem and f"{what}: {size.problem}", *size.warnings]):
            found.setdefault(text, []).append(f"{size.ranks} {size.scaling}")
    return found


def write_study(study: Study, given: Namespace) -> None:
    """Write the files that are asked for."""
    if given.json:
        study.write(Path(given.json))
    if given.csv:
        write_csv(study, Path(given.csv))
    if given.latex:
        Path(given.latex).write_text(latex(study), encoding="utf-8")
    picture = given.plot if any(size.rounds for size in study.sizes) else None
    if picture:
        from runner.tools.scale.plot import plot

        plot([study], [study.target], picture)
    for path in filter(None, (given.json, given.csv, given.latex, picture)):
        print(f"wrote {path}")


def write_csv(study: Study, path: Path) -> None:
    """Numbers as they are, nothing where one is not known."""
    fields = [field for field in FIELDS if field.name]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields])
        for scaling in (STRONG, WEAK):
            writer.writerows([field.value(study, size) for field in fields] for size in study.measured(scaling))


def latex(study: Study) -> str:
    """A table for the package booktabs."""
    columns = [field for field in FIELDS if field.title and field.spared < 6]
    lines = [rf"\begin{{tabular}}{{{'r' * len(columns)}}}", r"\toprule"]
    lines.append(
        " & ".join(_escaped(field.title.replace("-\n", "").replace("\n", " ").strip()) for field in columns) + r" \\"
    )
    for scaling in (STRONG, WEAK):
        rows = study.measured(scaling)
        if rows:
            lines += [r"\midrule", rf"\multicolumn{{{len(columns)}}}{{l}}{{{scaling} scaling}} \\"]
            lines += [" & ".join(_escaped(field.text(study, size)) for field in columns) + r" \\" for size in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _escaped(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")
