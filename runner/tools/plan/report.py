"""The plan as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from runner.base.quantities import size_text
from runner.base.settings import settings_in
from runner.parallel.settings import ParallelSettings
from runner.tools.plan.planning import Planned
from runner.tools.plan.ranking import Advice
from runner.tools.plan.traffic import total
from runner.tools.tables.table import Column, console, print_columns

_ROWS = 20


def flags(one: Planned) -> str:
    """The options of a run in this layout that are not the defaults; without --clip-norm, on which nothing here depends."""
    options, usual = one.candidate.options, ParallelSettings()
    parts = [f"--strategy {options.strategy}"]
    for name, setting in settings_in(ParallelSettings).items():
        value = getattr(options, name)
        if name not in ("strategy", "clip_norm") and value != getattr(usual, name):
            parts.append(setting.flag if value is True else f"{setting.flag} {value}")
    return " ".join(parts)


def print_table(title: str, plans: Sequence[Planned], advice: Advice, limit: float) -> None:
    """Print the layouts, the best first, and the advice. ``limit``: bytes of a GPU that may be used."""
    shown = plans[:_ROWS]
    memories = [one.memory for one in shown]
    marks = ["fits" if one.memory.total <= limit else "no" for one in shown]
    again = [one.candidate.options.activation_checkpointing for one in shown]
    has_pipeline = any(one.idle for one in shown)
    has_links = any(one.traffic.across for one in shown)

    def sizes(heading: str, numbers: Sequence[float], spared: int = 0) -> Column:
        return Column(title=heading, cells=[size_text(number) if number else "" for number in numbers], spared=spared)

    columns = [
        Column(title="layout\n", cells=[one.candidate.name for one in shown], justify="left"),
        Column(title="\n", cells=marks, justify="left"),
        Column(title="samples\n/s", cells=[_rate(one) for one in shown], spared=7),
        sizes("memory\nper GPU", [memory.total for memory in memories]),
        sizes("para-\nmeters", [memory.parameters for memory in memories], 4),
        sizes("gradi-\nents", [memory.gradients for memory in memories], 5),
        sizes("opti-\nmizer", [memory.optimizer for memory in memories], 3),
        sizes("activa-\ntions", [memory.activations for memory in memories], 2),
        sizes("gath-\nered", [memory.gathered for memory in memories], 6),
    ]
    if set(again) != {"none"}:
        columns.insert(2, Column(title="computed\nagain", cells=["" if how == "none" else how for how in again]))
    if any(memory.host for memory in memories):
        columns.append(sizes("in host\nmemory", [memory.host for memory in memories]))
    if has_pipeline:
        columns.append(Column(title="idle\n", cells=[f"{one.idle:.0%}" if one.idle else "" for one in shown]))
    columns.append(sizes("sent in\na host", [total(one.traffic.within) for one in shown], 1))
    if has_links:
        columns.append(sizes("across\nhosts", [total(one.traffic.across) for one in shown]))
    print_columns(title, columns)
    out = console()
    if len(plans) > len(shown):
        out.print(f"and {len(plans) - len(shown)} more (--json has all)", style="dim", markup=False)
    out.print()
    if advice.planned is None:
        out.print(f"none: {advice.reason}", markup=False)
    else:
        out.print(f"take {flags(advice.planned)}", style="bold", markup=False)
        out.print(f"because {advice.reason}", markup=False)
        if advice.planned.operations:
            out.print(_estimate(advice.planned), markup=False)


def _estimate(one: Planned) -> str:
    step = one.step
    parts = {"computing": step.computing, "waiting in the pipeline": step.idle, "sending": step.sending}
    made_of = ", ".join(f"{_milliseconds(seconds)} {what}" for what, seconds in parts.items() if seconds)
    return f"estimated: {_rate(one)} samples/s, {_milliseconds(step.seconds)} per step: {made_of} (an H100's data sheet, nothing overlaps)"


def _rate(one: Planned) -> str:
    """Samples per second of all GPUs; nothing where the operations are not known."""
    return f"{1 / one.seconds_per_sample:.3g}" if one.operations else ""


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"


def as_json(one: Planned, limit: float) -> dict[str, Any]:
    """One layout."""
    candidate = one.candidate
    return {
        "name": candidate.name,
        "flags": flags(one),
        "degrees": asdict(candidate.degrees),
        "options": asdict(candidate.options),
        "batch_size": candidate.batch,
        "fits": one.memory.total <= limit,
        "memory": one.memory.as_dict(),
        "by_stage": [memory.as_dict() for memory in one.by_stage],
        "idle": one.idle,
        "sent_within": one.traffic.within,
        "sent_across": one.traffic.across,
        "operations": one.operations,
        "step": asdict(one.step),
        "seconds_per_sample": one.seconds_per_sample,
    }


def facts(
    plans: Sequence[Planned], advice: Advice, *, limit: float, count: int, trained: int, left_out: dict[str, int]
) -> dict[str, Any]:
    """What ``--json`` writes: sizes in bytes, seconds, the layouts best first."""
    best = advice.planned
    return {
        "usable": limit,
        "parameters": count,
        "trained": trained,
        "recommended": as_json(best, limit) if best else None,
        "reason": advice.reason,
        "layouts": [as_json(one, limit) for one in plans],
        "left_out": left_out,
    }
