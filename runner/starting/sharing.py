"""Whether the ranks of a host share one import of torch, and if not, why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from runner.base.errors import UsageError
from runner.guard.process.identity import is_read_by_torch
from runner.hardware.binding import NONE, OPENMP_VARIABLES
from runner.launch.detect import detect
from runner.launch.target import NO_PYTHON, Target, find_target
from runner.options.command import Request
from runner.options.job_settings import JobSettings
from runner.tools.registry import tool_names, tool_of
from runner.torchrun.shared_import import APPLIED

_NAME = re.compile(rb"""["']([A-Z][A-Z0-9_]+)["']""")


def why_not_here(job: JobSettings, environment: Mapping[str, str]) -> str:
    """Why each rank is to import torch by itself, whatever the target; "" if nothing speaks against one import for this host.

    Raises:
        RunnerError: the variables of the launch are wrong.
    """
    if job.share_import == "off":
        return "--share-import off"
    if job.share_import == "auto" and not job.restart_in_place and job.began is None:  # else a next start uses it, too
        context = detect(environment, job.launcher)
        if (context.local_size or context.size).value < 2:
            return "one rank on this host"
    if job.bind != NONE and (early := next(filter(environment.get, OPENMP_VARIABLES), "")):
        return f"{early} is set, which is read at the import, after the ranks are bound to cores (--bind none)"
    return ""


def found_target(request: Request) -> Target | UsageError:
    """Return the target of a command line, or the reason why it cannot be run."""
    try:
        return find_target(request.target, form=request.form, tools=tool_names())
    except UsageError as problem:
        return problem


def why_not_for_target(request: Request, find: Callable[[], Target | UsageError]) -> str:
    """Return why each rank must import torch for this target by itself; "" if nothing speaks against one import."""
    if request.tool in tool_names():
        return "" if tool_of(request.tool).needs_torch else f"{request.tool} needs no torch"
    if request.form == NO_PYTHON:
        return "the target is no Python program"
    if request.target == "-":
        return ""
    target = find()
    if isinstance(target, UsageError):  # of which each rank tells the others
        return "the target cannot be run"
    names = {name.decode() for name in _NAME.findall(source_of(target))}
    if late := sorted(name for name in names if is_read_by_torch(name) and name not in APPLIED):
        return f"{target.name} sets {late[0]}, which is read at the import"
    return ""


def source_of(target: Target) -> bytes:
    """A program's own text, without that of what it imports; empty where it is no text."""
    return target.path.read_bytes() if target.path is not None and target.path.suffix == ".py" else target.source
