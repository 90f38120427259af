"""The tools by name. Other packages add tools by an entry point ``runner.tools``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.base.extensions import extensions, load_function

if TYPE_CHECKING:
    from runner.job import Job

ToolFunction = Callable[["Job", list[str]], None]


@dataclass(frozen=True)
class Tool:
    """A tool: its purpose in a line, and how it is started. The function ``x`` of ``runner.tools.x.x`` is the tool ``x``."""

    summary: str
    needs_rendezvous: bool = True  # False: it runs in one process, whatever a launcher's variables say
    needs_torch: bool = False  # on each rank: imported once per host
    shows_training: bool = False  # it shows what a workload would get
    has_channel: bool = False  # its ranks exchange messages by rank 0's socket
    examines: bool = False  # it accepts ranks that do not fit together, and reports what is wrong


TOOLS = {
    "explain": Tool("explain the launch: ranks, rendezvous, devices, backend, and why", shows_training=True),
    "bench": Tool("benchmark the collectives of each backend", needs_torch=True),
    "checkpoint": Tool("list, verify and export checkpoints", needs_rendezvous=False),
    "compare": Tool("compare how fast backends and layouts train a workload", needs_torch=True),
    "doctor": Tool("check this cluster: hosts, network, GPUs, versions", has_channel=True, examines=True),
    "plan": Tool("list the layouts that fit the GPUs' memory", needs_rendezvous=False),
    "jobscript": Tool("write a job script for Slurm, PBS or LSF, or submit it", needs_rendezvous=False),
    "scale": Tool("measure strong and weak scaling", needs_rendezvous=False),
    "smoke": Tool("test this installation with three short jobs", needs_rendezvous=False),
    "report": Tool("write a page about a run, or several: curves, ranks, failures", needs_rendezvous=False),
    "stage": Tool("send environments and data to each host's own disk", has_channel=True),
    "supervise": Tool("restart a job after failures that a restart can fix", needs_rendezvous=False),
    "top": Tool("show the ranks of a running job, live", needs_rendezvous=False),
}


def summaries() -> dict[str, str]:
    """Return each tool's purpose in a line, by name."""
    others = {point.name: f"of {point.value.partition('.')[0]}" for point in extensions("runner.tools")}
    return {name: tool.summary for name, tool in TOOLS.items()} | others


def tool_names() -> list[str]:
    """The names of all tools, including those of other packages."""
    return [*TOOLS, *(point.name for point in extensions("runner.tools"))]


def tool_of(target: str) -> Tool:
    """Return how a target is started: like any other program, unless it is one of these tools."""
    return TOOLS.get(target, Tool(""))


def load_tool(name: str) -> ToolFunction:
    """The function of a tool, by its name."""
    if name in TOOLS:
        tool: ToolFunction = getattr(importlib.import_module(f"runner.tools.{name}.{name}"), name)
        return tool
    return load_function("runner.tools", name, "tool")
