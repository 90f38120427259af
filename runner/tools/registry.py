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


@dataclass(frozen=True, kw_only=True)
class Tool:
    """What a tool is for, in a line; where its function is (``module:function``), and how it is started."""

    summary: str
    function: str
    needs_rendezvous: bool = (
        True  # False: it runs in one process without rendezvous, whatever a launcher's variables say
    )
    needs_torch: bool = False  # on each rank: imported once per host
    shows_training: bool = False  # it shows what a workload would get
    examines: bool = False  # it accepts ranks that do not fit together, and reports what is wrong


TOOLS = {
    "explain": Tool(
        summary="explain the launch: ranks, rendezvous, devices, backend, and why",
        function="runner.tools.explain.explain:explain",
        shows_training=True,
    ),
    "bench": Tool(
        summary="benchmark the collectives of each backend", function="runner.tools.bench.bench:bench", needs_torch=True
    ),
    "checkpoint": Tool(
        summary="list, verify and export checkpoints",
        function="runner.tools.checkpoint.checkpoint:checkpoint",
        needs_rendezvous=False,
    ),
    "compare": Tool(
        summary="compare how fast backends and layouts train a workload",
        function="runner.tools.compare.compare:compare",
        needs_torch=True,
    ),
    "doctor": Tool(
        summary="check this cluster: hosts, network, GPUs, versions",
        function="runner.tools.doctor.doctor:doctor",
        examines=True,
    ),
    "plan": Tool(
        summary="list the layouts that fit the GPUs' memory",
        function="runner.tools.plan.plan:plan",
        needs_rendezvous=False,
    ),
    "jobscript": Tool(
        summary="write a job script for Slurm, PBS or LSF, or submit it",
        function="runner.tools.jobscript.jobscript:jobscript",
        needs_rendezvous=False,
    ),
    "scale": Tool(
        summary="measure strong and weak scaling", function="runner.tools.scale.scale:scale", needs_rendezvous=False
    ),
    "smoke": Tool(
        summary="test this installation with a few short jobs",
        function="runner.tools.smoke.smoke:smoke",
        needs_rendezvous=False,
    ),
    "report": Tool(
        summary="write a page about a run, or several: curves, ranks, failures",
        function="runner.tools.report.report:report",
        needs_rendezvous=False,
    ),
    "supervise": Tool(
        summary="restart a job after failures that a restart can fix",
        function="runner.tools.supervise.supervise:supervise",
        needs_rendezvous=False,
    ),
    "top": Tool(
        summary="show the ranks of a running job, live", function="runner.tools.top.top:top", needs_rendezvous=False
    ),
}


def summaries() -> dict[str, str]:
    """What each tool is for, by name."""
    others = {point.name: f"of {point.value.partition('.')[0]}" for point in extensions("runner.tools")}
    return {name: tool.summary for name, tool in TOOLS.items()} | others


def tool_names() -> list[str]:
    """The names of all tools, including those of other packages."""
    return [*TOOLS, *(point.name for point in extensions("runner.tools"))]


def tool_of(target: str) -> Tool:
    """Return how a target is started: like any other program, unless it is one of these tools."""
    return TOOLS.get(target, Tool(summary="", function=""))


def load_tool(name: str) -> ToolFunction:
    """The function of a tool, by its name."""
    if name in TOOLS:
        module, _, function = TOOLS[name].function.partition(":")
        tool: ToolFunction = getattr(importlib.import_module(module), function)
        return tool
    return load_function("runner.tools", name, "tool")
