"""The plan as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from runner.base.quantities import size_text
from runner.base.settings import settings_in
from runner.parallel.settings import ParallelSettings
from runner.tools.plan.memory import Memory
from runner.tools.plan.planning import Planned
from runner.tools.plan.schedules import idle_share
from runner.tools.tables.table import Column, console, print_columns

_ROWS = 20


def flags(one: Planned) -> str:
    """Return the options of a run in this layout that are not the defaults, without --clip-norm, which takes no memory."""
    options, usual = one.candidate.options, ParallelSettings()
    parts = [f"--strategy {options.strategy}"]
    for name, setting in settings_in(ParallelSettings).items():
        value = getattr(options, name)
        if name not in ("strategy", "clip_norm") and value != getattr(usual, name):
            parts.append(setting.flag if value is True else f"{setting.flag} {value}")
    return " ".join(parts)


def print_table(title: str, plans: Sequence[Planned], reason: str, limit: float) -> None:
    """Print the layouts, the best first, and the advice. ``limit``: bytes of a GPU that may be used."""
    shown = plans[:_ROWS]
    again = [one.candidate.options.activation_checkpointing for one in shown]
    idle = [idle_share(one.candidate.options) for one in shown]

    def sizes(heading: str, number: Callable[[Memory], int], spared: int = 0) -> Column:
        numbers = [number(one.memory) for one in shown]
        return Column(title=heading, cells=[size_text(one) if one else "" for one in numbers], spared=spared)

    columns = [
        Column(title="layout\n", cells=[one.candidate.name for one in shown], justify="left"),
        Column(title="\n", cells=["fits" if one.memory.total <= limit else "no" for one in shown], justify="left"),
        sizes("memory\nper GPU", lambda memory: memory.total),
        sizes("para-\nmeters", lambda memory: memory.parameters, 3),
        sizes("gradi-\nents", lambda memory: memory.gradients, 4),
        sizes("opti-\nmizer", lambda memory: memory.optimizer, 2),
        sizes("activa-\ntions", lambda memory: memory.activations, 1),
        sizes("gath-\nered", lambda memory: memory.gathered, 5),
    ]
    if set(again) != {"none"}:
        columns.insert(2, Column(title="computed\nagain", cells=["" if how == "none" else how for how in again]))
    if any(one.memory.host for one in shown):
        columns.append(sizes("in host\nmemory", lambda memory: memory.host))
    if any(idle):
        columns.append(Column(title="idle\n", cells=[f"{share:.0%}" if share else "" for share in idle]))
    print_columns(title, columns)
    out = console()
    if len(plans) > len(shown):
        out.print(f"and {len(plans) - len(shown)} more (--json has all)", style="dim")
    out.print()
    if plans[0].memory.total > limit:
        out.print(f"none: {reason}")
    else:
        out.print(f"take {flags(plans[0])}", style="bold")
        out.print(f"because {reason}")


def as_json(one: Planned, limit: float) -> dict[str, Any]:
    """Return the facts about one layout, with sizes in bytes."""
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
        "idle": idle_share(candidate.options),
    }
