"""torch, and the backends that it may use."""

from __future__ import annotations

import time

from runner.backends.backend import Backend
from runner.job import Job
from runner.tools.doctor.examine import CheckFunction, Team, Verdict, grouped, ok, warn, where

_SLOW_IMPORT = 15.0  # seconds; on a local disk it takes 1.3 to 1.9 (measured, torch 2.14)


def torch_import(job: Job, team: Team) -> Verdict:
    """How long ``import torch`` takes on each host, with all its ranks at once."""
    start = time.monotonic()
    import torch

    found = team.gather([time.monotonic() - start, torch.__version__])
    per_host = {host.name: max(found[rank][0] for rank in host.ranks) for host in job.topology.hosts}
    slowest, fastest = max(per_host, key=per_host.__getitem__), min(per_host.values())
    text = f"import torch takes {per_host[slowest]:.1f} s on {slowest}"
    if len(per_host) > 1:
        text += f", {fastest:.1f} s on the fastest host"
    if per_host[slowest] > _SLOW_IMPORT:
        return warn(
            text, "install torch on a faster file system (local disk, a container image), or start fewer ranks per host"
        )
    return ok(text)


def backend(of: Backend) -> CheckFunction:
    """The check of a backend: whether it loads, and is the same on all ranks."""

    def check(job: Job, team: Team) -> Verdict:
        own = of.examine(job)
        found = team.gather([own.text, own.problem])
        broken = [rank for rank, (_, problem) in enumerate(found) if problem]
        if broken:
            return warn(
                f"installed, but it does not load on {where(broken, job.topology)}: {found[broken[0]][1]}",
                "build it against the torch and the MPI in use, or uninstall it",
            )
        texts = [text for text, _ in found]
        if len(set(texts)) > 1:
            return warn(grouped(texts, job.topology), "install the same on all hosts")
        return ok(texts[0])

    return check
