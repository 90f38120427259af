"""torch, and what it may talk by."""

from __future__ import annotations

import importlib
import sys
import time
from importlib.util import find_spec
from typing import Any

from runner.comm.registering import why_not
from runner.job import Job
from runner.tools.doctor.examine import Team, Verdict, fail, grouped, ok, warn, where

_SLOW_IMPORT = 15.0  # seconds; on a local disk it takes 1.3 to 1.9 (measured, torch 2.14)


def torch_import(job: Job, team: Team) -> Verdict:
    """How long ``import torch`` takes on each host, all its ranks at once."""
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


def mpi_backend(job: Job, team: Team) -> Verdict:
    """Whether torch.distributed can use MPI."""
    import torch.distributed as dist

    found = team.gather(dist.is_mpi_available())
    if len(set(found)) > 1:
        return fail(
            f"torch's MPI backend: {grouped(['there' if f else 'not there' for f in found], job.topology)}",
            "install the same torch on all hosts",
        )
    if found[0]:
        return ok("this torch was built with MPI: --backend mpi")
    problem = why_not(job)
    if problem:
        return ok(f"not in this torch; mpi4py does not stand in for it: {problem}")
    return ok("not in this torch; mpi4py stands in for it on CPUs")


def horovod(job: Job, team: Team) -> Verdict:
    """Whether Horovod is installed, and what it was built with."""
    found = team.gather(_horovod())
    broken = [rank for rank, one in enumerate(found) if one["problem"]]
    if broken:
        return warn(
            f"installed, but it does not load on {where(broken, job.topology)}: {found[broken[0]]['problem']}",
            "build it against the torch and the MPI in use, or uninstall it",
        )
    if len({one["text"] for one in found}) > 1:
        return warn(grouped([one["text"] for one in found], job.topology), "install the same on all hosts")
    return ok(found[0]["text"])


def _horovod() -> dict[str, Any]:
    if find_spec("horovod") is None:
        return {"text": "not installed", "problem": ""}
    try:
        hvd = importlib.import_module("horovod.torch")
        built = [name for name in ("mpi", "gloo", "nccl") if getattr(hvd, f"{name}_built")()]
        version = sys.modules["horovod"].__version__
    except Exception as error:  # a library that is not there, a symbol that torch has no more
        return {"text": "", "problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return {"text": f"{version}, with {', '.join(built) or 'no controller'}", "problem": ""}
