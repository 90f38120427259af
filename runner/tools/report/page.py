"""The page about one or more runs: HTML in one file, without JavaScript and without anything to load."""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.base.command_name import COMMAND
from runner.base.quantities import clock_text, size_text
from runner.tools.report.figures import Curve, Figure, chart, heat_map, stack
from runner.tools.report.folder import RunFolder, numbers
from runner.tools.report.ranks import NO_TRAINING, largest, mean

_TITLES = {"loss": "loss", "val_accuracy": "accuracy of the evaluation", "lr": "learning rate"}  # of the first figures
_SPEEDS = {
    "samples_per_s": "samples/s, all ranks",
    "units_per_s": "units/s (such as tokens), all ranks",
    "tflops_per_rank": "TFLOP/s per rank",
    "mfu": "MFU: share of what the device can do",
}
_MOST_RANKS = 16  # in the table
_UNKNOWN = "n/a"


def page_of(runs: Sequence[RunFolder], now: float) -> str:
    """Return the page about these runs.

    Args:
        now: the Unix time that tells whether a run still goes.
    """
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"known": known, "number": number, "clock": clock}
    settings = by_name([run.defaults | run.given for run in runs])
    given = dict.fromkeys(name for run in runs for name in run.given)
    return environment.get_template("page.html.jinja2").render(
        runs=runs,
        now=now,
        summary=by_name([_summary(run) for run in runs]),
        training=_training(runs),
        throughput=_throughput(runs),
        parts=_parts,
        lateness=_lateness,
        latest=_latest,
        given={name: settings[name] for name in given},
        defaults={name: cells for name, cells in settings.items() if name not in given},
        origin=by_name([_origin(run) for run in runs]),
        made=f"{clock(now)} by {COMMAND} report",
    )


def known(value: Any) -> str:
    """Show ``n/a`` for what is None, missing or empty."""
    return str(value) if value or value == 0 else _UNKNOWN


def number(value: Any, unit: str = "") -> str:
    """Show ``0.002134``, ``12,346`` or ``1.2 GB``: four digits, or the whole part."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return _UNKNOWN
    if unit == "B":
        return size_text(value)
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 1000 else f"{value:.4g} {unit}".strip()


def clock(value: Any) -> str:
    """Show a Unix time by this host's clock."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if value else _UNKNOWN
    except (TypeError, ValueError, OverflowError):
        return _UNKNOWN


def by_name(columns: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return a row per name with a cell per column."""
    return {name: [known(column.get(name)) for column in columns] for column in columns for name in column}


def _summary(run: RunFolder) -> dict[str, str]:
    """Return the most important numbers, by name."""
    steps = [points[-1][0] for points in run.metrics.values()] + [float(one.step or 0) for one in run.states]
    speeds, losses, val_losses, accuracies = (
        [value for _, value in run.metrics.get(name, [])]
        for name in ("samples_per_s", "loss", "val_loss", "val_accuracy")
    )
    step_seconds = run.times.in_training("step_seconds") if run.times else np.empty(0)
    step_seconds = step_seconds[np.isfinite(step_seconds)]
    restarts = sum(1 for one in run.failures if one["fixed"]) + max(0, len(run.attempts) - 1)
    listed = run.facts.get("hosts")
    hosts = len({one.host for one in run.states}) or (len(listed) if isinstance(listed, list) else 0)
    ranks = known(len(run.states) or run.facts.get("size"))
    return {
        "ranks": f"{ranks} on {hosts} host{'s' if hosts > 1 else ''}" if hosts else ranks,
        "time": clock_text(float(run.times.seconds[-1])) if run.times else _UNKNOWN,
        "steps": number(max(steps, default=None)),
        "loss": number(losses[-1] if losses else None),
        "loss of the evaluation": number(val_losses[-1] if val_losses else None),
        "best accuracy": number(100 * max(accuracies), "%") if accuracies else _UNKNOWN,
        "samples/s, median": number(statistics.median(speeds) if speeds else None),
        "ms per step, median": number(1000 * float(np.median(step_seconds)) if step_seconds.size else None),
        "restarts": str(restarts) if run.states or run.failures or run.attempts else _UNKNOWN,
    }


def _origin(run: RunFolder) -> dict[str, str]:
    """Return what was started, with which software."""
    facts = run.facts
    devices, versions = (
        found if isinstance(found := facts.get(name), dict) else {} for name in ("devices", "versions")
    )
    command = facts.get("command") or next((one["command"] for one in run.failures if one.get("command")), None)
    return {
        "command": shlex.join(map(str, command)) if isinstance(command, list) else _UNKNOWN,
        "folder": known(facts.get("folder")),
        "began": clock(facts.get("began")),
        "launcher": known(facts.get("launcher")),
        "backend": known(facts.get("backend")),
        "devices": known(", ".join(f"{count} × {name}" for name, count in devices.items())),
        **{name: known(versions.get(name)) for name in ("runner", "python", "torch")},
    }


def _training(runs: Sequence[RunFolder]) -> list[Figure]:
    """Draw a figure per metric. The evaluation's loss is drawn with that of the training, and so are its other metrics."""
    there = list(dict.fromkeys(name for run in runs for name in run.metrics if name not in _SPEEDS))
    names = [*(name for name in _TITLES if name in there), *(name for name in there if name not in _TITLES)]
    alone = [name for name in names if not name.startswith("val_") or name.removeprefix("val_") not in there]
    return [chart(_TITLES.get(name, name), _curves(runs, name)) for name in alone]


def _throughput(runs: Sequence[RunFolder]) -> list[Figure]:
    """Draw the speeds by step, and the time of a step over time."""
    figures = [
        chart(title, curves, from_zero=True) for name, title in _SPEEDS.items() if (curves := _curves(runs, name))
    ]
    curves = []
    for place, run in enumerate(runs):
        if run.times and np.isfinite(means := mean(1000 * run.times.in_training("step_seconds"))).any():
            points = list(zip(run.times.seconds.tolist(), means.tolist(), strict=True))
            curves.append(Curve(label=run.name, points=points, color=f"C{place}"))
    if curves:
        figures.append(chart("ms per step, mean of the ranks", curves, over_time=True, from_zero=True))
    return figures


def _curves(runs: Sequence[RunFolder], name: str) -> list[Curve]:
    """Return a metric of all runs, dashed what the evaluation has of it."""
    curves = []
    for place, run in enumerate(runs):
        names = ("training", "evaluation") if len(runs) == 1 else (run.name, f"{run.name}, evaluation")
        if points := run.metrics.get(name):
            curves.append(Curve(label=names[0], points=points, color=f"C{place}"))
        if points := run.metrics.get(f"val_{name}"):
            color = "C1" if len(runs) == 1 else f"C{place}"
            curves.append(Curve(label=names[1], points=points, color=color, is_dashed=True))
    return curves


def _parts(run: RunFolder) -> Figure | None:
    """Draw the parts of a step over time."""
    parts = run.times.parts_of_step() if run.times else {}
    return stack("ms of a step, mean of the ranks", parts, run.times.seconds) if run.times and parts else None


def _lateness(run: RunFolder) -> Figure:
    """Draw the map of ranks and time."""
    assert run.times
    known_failures = [found for one in run.failures if {"time", "rank"} <= (found := numbers(one)).keys()]
    failures = [(one["time"] - run.times.began, int(one["rank"])) for one in known_failures]
    title = "how late each rank is" + ("" if run.times.knows_own_time else ", by whole steps")
    return heat_map(title, run.times, failures)


def _latest(run: RunFolder) -> list[dict[str, str]]:
    """Return the ranks that are late most, with their numbers."""
    times = run.times
    assert times
    hosts = {one.rank: one.host for one in run.states}
    late = times.lateness()
    late = mean(np.where(late == NO_TRAINING, np.nan, late), axis=1)
    step, own, data = (1000 * mean(times.in_training(f"{name}_seconds"), axis=1) for name in ("step", "own", "data"))
    cpu, gpu = (mean(times.numbers[name], axis=1) for name in ("cpu", "gpu"))
    memory, gpu_memory = (largest(times.numbers[name], axis=1) for name in ("memory", "gpu_memory"))
    return [
        {
            "rank": str(times.ranks[row]),
            "host": known(hosts.get(times.ranks[row])),
            "late, mean": number(100 * late[row], "%"),
            "ms per step": number(step[row]),
            "by itself": number(own[row]),
            "waiting for data": number(data[row]),
            "cores in use": number(cpu[row] / 100),
            "most memory": number(memory[row], "B"),
            "GPU in use": number(gpu[row], "%"),
            "most GPU memory": number(gpu_memory[row], "B"),
        }
        for row in np.argsort(-np.nan_to_num(late), kind="stable")[:_MOST_RANKS]
    ]
