"""The sections with the training's curves: metrics and throughput."""

from __future__ import annotations

from runner.tools.run_report.markup import absent, figures
from runner.tools.run_report.over_time import mean_over
from runner.tools.run_report.pictures import Curve, chart
from runner.tools.run_report.shown import Shown, points_of

SPEEDS = {
    "samples_per_s": "samples/s, all ranks",
    "units_per_s": "units/s (such as tokens), all ranks",
    "tflops_per_rank": "TFLOP/s per rank",
    "mfu": "MFU: share of what the device can do",
}
_TITLES = {"loss": "loss", "lr": "learning rate", "val_accuracy": "accuracy of the evaluation"}
_FIRST = ("loss", "val_accuracy", "lr")  # of the curves


def training(shown: list[Shown]) -> str:
    """The metrics but speeds, a picture each."""
    names = [name for one in shown for name in one.run.metrics if name not in {*SPEEDS, "epoch"}]
    names = list(dict.fromkeys([*(name for name in _FIRST if name in names), *names]))
    # An evaluation's numbers are with those of the training that have the same name.
    beside = {name: f"val_{name}" for name in names if f"val_{name}" in names}
    made = [_curves(shown, name, beside.get(name)) for name in names if name not in beside.values()]
    return figures(made) or absent(
        "There is no <code>metrics.jsonl</code>: the program is no workload, or has not trained yet."
    )


def _curves(shown: list[Shown], name: str, beside: str | None) -> str:
    curves = []
    for number, one in enumerate(shown):
        for metric, is_beside in ((name, False), (beside, True)):
            if metric and (points := one.run.metrics.get(metric)):
                colour = number if len(shown) > 1 or not is_beside else 1
                label = one.prefix + ("evaluation" if is_beside else "training" if beside else "")
                curves.append(Curve(label=label.removesuffix(": "), points=points, colour=colour, is_dashed=is_beside))
    return chart(_TITLES.get(name, SPEEDS.get(name, name)), curves, x="step", from_zero=name in SPEEDS)


def throughput(shown: list[Shown]) -> str:
    """Speeds by step, and the time of a step over time."""
    made = [_curves(shown, name, None) for name in SPEEDS if any(name in one.run.metrics for one in shown)]
    curves = []
    for number, one in enumerate(shown):
        if one.grid:
            row = mean_over(one.grid, one.grid.cells, "step_seconds")
            points = points_of(one.grid, [None if value is None else 1000 * value for value in row])
            curves.append(Curve(label=one.run.name, points=points, colour=number))
    made.append(chart("ms per step, mean of the ranks", curves, x="time", over_time=True, from_zero=True))
    return figures(made) or absent("No speeds are written.")
