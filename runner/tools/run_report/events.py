"""The sections about what has happened: checkpoints, starts and failures."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from runner.base.quantities import size_text
from runner.tools.run_report.folder import RunFolder
from runner.tools.run_report.markup import NOT_KNOWN, absent, clock, table, whole_text
from runner.tools.run_report.shown import Shown

_MOST_FAILURES = 50
_MOST_LETTERS = 20_000  # of a traceback


def checkpoints(shown: list[Shown]) -> str:
    """Those that are there."""
    return "".join(one.heading() + _checkpoints_of(one.run) for one in shown)


def failures(shown: list[Shown]) -> str:
    """What has failed, and the starts after that."""
    return "".join(one.heading() + _failures_of(one.run) for one in shown)


def _checkpoints_of(run: RunFolder) -> str:
    rows = [
        [saved.name, whole_text(saved.step), whole_text(saved.epoch), size_text(saved.size), clock(saved.time)]
        for saved in run.checkpoints
    ]
    titles = ["checkpoint", "step", "epochs", "size", "written"]
    return table(titles, rows, numbers=(1, 2, 3)) if rows else absent("None is there.")


def _failures_of(run: RunFolder) -> str:
    parts = []
    if run.attempts:
        titles = ["start", "cause", "then", "code", "step", "seconds", "began"]
        names = ("number", "what", "next", "code", "step", "seconds", "began")
        rows = [[_attempt_text(name, one) for name in names] for one in run.attempts]
        parts.append("<h3>starts by supervise</h3>" + table(titles, rows, numbers=(0, 3, 4, 5)))
    if run.failures:
        titles = ["rank", "cause", "then", "step", "code", "host", "time"]
        rows = [
            [
                whole_text(one.get("rank")),
                str(one.get("what")),
                "all ranks started again" if one.get("fixed") else "the job ended",
                whole_text(one.get("step")),
                whole_text(one.get("exit_code")),
                str(one.get("host") or NOT_KNOWN),
                clock(one.get("time")),
            ]
            for one in run.failures[:_MOST_FAILURES]
        ]
        parts.append("<h3>failures</h3>" + table(titles, rows, numbers=(0, 3, 4)))
        parts += [_stacks(one) for one in run.failures[:_MOST_FAILURES]]
    nothing = "None." if run.states else "None is known: they are written with <code>--log-dir</code>."
    return "".join(parts) or absent(nothing)


def _stacks(failure: Mapping[str, Any]) -> str:
    """The failed rank's traceback, and after a hang all ranks' stacks, which open by a click."""
    at = clock(failure.get("time"))
    found = {name: str(failure.get(name) or "").strip()[-_MOST_LETTERS:] for name in ("traceback", "stacks")}
    return "".join(
        f"<details><summary>{name} of the failure at {at}</summary><pre>{escape(text)}</pre></details>"
        for name, text in found.items()
        if text
    )


def _attempt_text(name: str, attempt: Mapping[str, Any]) -> str:
    value = attempt.get(name)
    if name == "what" and value:
        return f"rank {whole_text(attempt.get('rank'))} on {attempt.get('host') or NOT_KNOWN}: {value}"
    if name == "began":
        return clock(value)
    if name == "seconds" and isinstance(value, float):
        return f"{value:.1f}"
    return NOT_KNOWN if value is None else str(value)
