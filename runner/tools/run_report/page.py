"""The page about a run, or two: HTML in one piece, without JavaScript and without anything that is loaded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from runner.base.command_name import COMMAND
from runner.base.quantities import clock_text
from runner.tools.run_report.curves import throughput, training
from runner.tools.run_report.events import checkpoints, failures
from runner.tools.run_report.folder import RunFolder
from runner.tools.run_report.hosts import hosts
from runner.tools.run_report.markup import NOT_KNOWN, clock, energy_text, table
from runner.tools.run_report.origin import settings, versions
from runner.tools.run_report.pictures import number_text
from runner.tools.run_report.ranks import ranks_over_time, steps
from runner.tools.run_report.shown import Shown, energy_of


def page_of(runs: Sequence[RunFolder], now: float) -> str:
    """The page of one run, or of two, side by side.

    Args:
        now: Unix time, by which it is told whether a run still goes.
    """
    shown = [Shown(run, is_one_of_two=len(runs) > 1) for run in runs]
    sections: dict[str, Callable[[list[Shown]], str]] = {
        "training": training,
        "throughput": throughput,
        "parts of a step": steps,
        "ranks": ranks_over_time,
        "hosts": hosts,
        "checkpoints": checkpoints,
        "restarts and failures": failures,
        "settings": settings,
        "versions and command": versions,
    }
    title = escape(" and ".join(run.name for run in runs))
    links = "".join(f'<a href="#{_id(name)}">{name}</a>' for name in sections)
    body = "".join(
        f'<section id="{_id(name)}"><h2>{name.capitalize()}</h2>{make(shown)}</section>'
        for name, make in sections.items()
    )
    states = "".join(_status(run, now, is_named=len(runs) > 1) for run in runs)
    places = ", ".join(str(place) for run in runs for place in run.places)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>\n{Path(__file__).with_name('style.css').read_text(encoding='utf-8')}</style></head>\n"
        f"<body><header><h1>{title}</h1>{states}{_overview(shown)}<nav>{links}</nav></header>\n"
        f"<main>{body}</main>\n<footer>Made {clock(now)} by <code>{COMMAND} report</code> from {escape(places)}</footer></body></html>\n"
    )


def _status(run: RunFolder, now: float, *, is_named: bool) -> str:
    status, why = run.status(now)
    named = f"{escape(run.name)}: " if is_named else ""
    what = "not known how it ended" if status == "unknown" else "still running" if status == "running" else status
    return f'<p>{named}<span class="status {status}">{what}</span> {escape(why)}</p>'


def _overview(shown: list[Shown]) -> str:
    facts = [_facts(one) for one in shown]
    if len(facts) == 1:
        tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts[0].items())
        return f'<dl class="tiles">{tiles}</dl>'
    rows = [[name, *(one[name] for one in facts)] for name in facts[0]]
    return table(["", *(one.run.name for one in shown)], rows)


def _facts(one: Shown) -> dict[str, str]:
    """The most important numbers, by name."""
    run = one.run
    states, metrics = run.states, run.metrics
    step = max(
        [point[0] for points in metrics.values() for point in points[-1:]] + [float(s.step or 0) for s in states],
        default=0,
    )
    speed = [value for _, value in metrics.get("samples_per_s", [])]
    steps = [sample["step_seconds"] for sample in one.samples if "step_seconds" in sample and sample["trains"]]
    accuracy = [value for _, value in metrics.get("val_accuracy", [])]
    used = energy_of(run.histories)
    size = len(states) or run.facts.get("size")
    return {
        "ranks": f"{size or NOT_KNOWN} on {len(one.hosts)} host{'' if len(one.hosts) == 1 else 's'}"
        if one.hosts
        else str(size or NOT_KNOWN),
        "time": clock_text(one.seconds) if one.grid else NOT_KNOWN,
        "steps": f"{step:.0f}" if step else NOT_KNOWN,
        "loss": _last(metrics.get("loss")),
        "evaluation's loss": _last(metrics.get("val_loss")),
        "accuracy, best": f"{100 * max(accuracy):.2f} %" if accuracy else NOT_KNOWN,
        "samples/s, median": number_text(statistics.median(speed)) if speed else NOT_KNOWN,
        "ms per step, median": number_text(1000 * statistics.median(steps)) if steps else NOT_KNOWN,
        "restarts": str(one.restarts) if states or run.failures or run.attempts else NOT_KNOWN,
        "GPUs' energy": NOT_KNOWN if used is None else energy_text(used[0]),
    }


def _id(name: str) -> str:
    return name.replace(" ", "-")


def _last(points: Sequence[tuple[float, float]] | None) -> str:
    return number_text(points[-1][1]) if points else NOT_KNOWN
