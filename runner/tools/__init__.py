"""The tools, by the name a user types. Others come from packages with an entry point ``runner.tools``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.comm.job import Job

Tool = Callable[["Job", list[str]], None]

TOOLS = {
    "explain": "runner.tools.explain:explain",
}


def tool_names() -> list[str]:
    """The names of all tools, those of other packages included."""
    return [*TOOLS, *(point.name for point in entry_points(group="runner.tools"))]


def load_tool(name: str) -> Tool:
    """The function behind a tool's name."""
    if name in TOOLS:
        module, _, function = TOOLS[name].partition(":")
        tool: Tool = getattr(importlib.import_module(module), function)
        return tool
    loaded: Tool = next(point for point in entry_points(group="runner.tools") if point.name == name).load()
    return loaded
