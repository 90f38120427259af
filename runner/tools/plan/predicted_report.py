"""What is predicted, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from runner.tools.plan.predicted import Outlook, PredictedStep
from runner.tools.plan.prediction import Prediction
from runner.tools.report.table import Column, console, print_columns

# A part of a step: its field, its title, and how readily it is left out on a narrow terminal.
_PARTS = (
    ("computing", "computing\n(ms)", 0),
    ("idle", "pipeline\nidle (ms)", 1),
    ("within", "exchange\nin a host", 1),
    ("between", "between\nhosts (ms)", 1),
    ("exchange", "exchange\n(ms)", 1),
)


def print_outlook(target: str, outlook: Outlook) -> None:
    """Print a table for each kind of scaling, the problems, the errors where sizes were measured, and where all comes from."""
    out = console()
    for scaling in dict.fromkeys(step.scaling for step in outlook.steps):
        steps = [step for step in outlook.steps if step.scaling == scaling]
        print_columns(f"{target}, {scaling} scaling, predicted", _columns(outlook, steps))
        for step in steps:
            if step.problem:
                out.print(f"{step.ranks} ranks: {step.problem}", markup=False)
        errors = [f"{ranks}: {error:+.1%}" for kind, ranks, error in outlook.errors if kind == scaling]
        if errors:
            out.print(f"each measured size, predicted from the others: {', '.join(errors)}", markup=False)
        out.print()
    for line in outlook.assumptions:
        out.print(line, style="dim", markup=False)


def _columns(outlook: Outlook, steps: list[PredictedStep]) -> list[Column]:
    def column(title: str, text: Callable[[PredictedStep, Prediction], str], spared: int = 0) -> Column:
        cells = ["" if step.prediction is None else text(step, step.prediction) for step in steps]
        return Column(title=title, cells=cells, spared=spared)

    columns = [
        Column(title="ranks\n", cells=[str(step.ranks) for step in steps]),
        column("hosts\n", lambda step, _: str(step.hosts or ""), 4),
        column("layout\n", lambda step, _: step.layout, 5),
        column("step\n(ms)", lambda _, found: _milliseconds(found.seconds)),
        column("expected\n(ms)", lambda _, found: f"{_milliseconds(found.low)} to {_milliseconds(found.high)}"),
        column(f"{outlook.unit}\n/s", lambda step, found: _speed(outlook.speed(step, found.seconds))),
        column("effi-\nciency", lambda _, found: f"{found.efficiency:.0%}"),
    ]
    for name, title, spared in _PARTS:
        if name == "computing" or any(step.prediction and getattr(step.prediction, name) for step in steps):
            columns.append(column(title, _part(name), spared))
    return [one for one in columns if any(one.cells)]


def _part(name: str) -> Callable[[PredictedStep, Prediction], str]:
    return lambda _, found: _milliseconds(getattr(found, name))


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.3g}"


def _speed(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def as_json(outlook: Outlook) -> dict[str, Any]:
    """Seconds, speeds of all ranks per second, and shares."""
    return {
        "unit": outlook.unit,
        "steps": [_row(outlook, step) for step in outlook.steps],
        "errors": [{"scaling": scaling, "ranks": ranks, "error": error} for scaling, ranks, error in outlook.errors],
        "assumptions": outlook.assumptions,
    }


def _row(outlook: Outlook, step: PredictedStep) -> dict[str, Any]:
    found = step.prediction
    if found is None:
        return {"scaling": step.scaling, "ranks": step.ranks, "problem": step.problem}
    speeds = [outlook.speed(step, seconds) for seconds in (found.seconds, found.high, found.low)]
    return {
        "scaling": step.scaling,
        "ranks": step.ranks,
        "hosts": step.hosts,
        "layout": step.layout,
        "samples": step.samples,
        **asdict(found),
        **dict(zip(("speed", "speed_low", "speed_high"), speeds, strict=True)),
        "efficiency": found.efficiency,
    }
