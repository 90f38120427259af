"""The tools, by the name a user types. Others come from packages with an entry point ``runner.tools``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.job import Job

ToolFunction = Callable[["Job", list[str]], None]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Where a tool's function is (``module:function``), and how its ranks come to it."""

    function: str
    meets: bool = True  # False: it needs no ranks but its own, whatever a launcher's variables say
    shows_training: bool = False  # it shows what a workload would get
    examines: bool = False  # it takes ranks that do not fit together, and tells what is wrong with them


TOOLS = {
    "explain": Tool(function="runner.tools.explain:explain", shows_training=True),
    "bench": Tool(function="runner.tools.bench.bench:bench"),
    "compare": Tool(function="runner.tools.compare.compare:compare"),
    "doctor": Tool(function="runner.tools.doctor.doctor:doctor", examines=True),
    "jobscript": Tool(function="runner.tools.jobscript:jobscript", meets=False),
    "smoke": Tool(function="runner.tools.smoke:smoke", meets=False),
}


def tool_names() -> list[str]:
    """The names of all tools, those of other packages included."""
    return [*TOOLS, *(point.name for point in entry_points(group="runner.tools"))]


def examines(target: str) -> bool:
    """Whether a target is a tool for ranks that other targets would refuse."""
    return target in TOOLS and TOOLS[target].examines


def shows_training(target: str) -> bool:
    """Whether a target is a tool that shows what a workload would get."""
    return target in TOOLS and TOOLS[target].shows_training


def works_alone(target: str) -> bool:
    """Whether a target is a tool that needs no other ranks."""
    return target in TOOLS and not TOOLS[target].meets


def load_tool(name: str) -> ToolFunction:
    """The function behind a tool's name."""
    if name in TOOLS:
        module, _, function = TOOLS[name].function.partition(":")
        tool: ToolFunction = getattr(importlib.import_module(module), function)
        return tool
    loaded: ToolFunction = next(point for point in entry_points(group="runner.tools") if point.name == name).load()
    return loaded
