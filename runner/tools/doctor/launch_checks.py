"""Checks of the ranks, their hosts and their software: versions, settings, torch and its backends."""

from __future__ import annotations

import os
import sys
import time

from runner.backends.backend import Backend
from runner.backends.registry import backends
from runner.job import Job
from runner.launch.detect import tasks_of_job
from runner.launch.launchers import SINGLE
from runner.rendezvous.records.compatibility import VERSIONS
from runner.rendezvous.transport.endpoint import NoMpi
from runner.tools.doctor.examine import CheckFunction, Team, Verdict, counted, fail, grouped, ok, warn, where
from runner.versions.extras import version_of
from runner.versions.features import FEATURES, RUNNER, lacking, number_of

_SLOW_IMPORT = 15.0  # seconds; on a local disk it takes 1.3 to 1.9 (measured, torch 2.14)
_PACKAGES = ("torchvision", "numpy", *(backend.package for backend in backends().values() if backend.package))


def launcher(job: Job, team: Team) -> Verdict:
    """Check that the MPI library belongs to the launcher."""
    MPI = sys.modules.get("mpi4py.MPI")
    library = ""
    no_mpi = job.endpoint.mpi_unavailable
    is_refused = no_mpi is not None and no_mpi.reason is NoMpi.WRONG_LIBRARY
    if MPI is not None and not is_refused:
        library = " ".join(MPI.Get_library_version().rstrip("\0").split(",")[0].split("\n")[0].split())
    refusals = [
        refusal for refusal in team.gather([no_mpi.message, no_mpi.fix] if no_mpi and is_refused else []) if refusal
    ]
    found = f"{job.context.launcher.title} ({job.context.why})"
    if refusals:
        detail, fix = refusals[0]
        return fail(detail, fix or "load the MPI module whose mpirun you use")
    if job.endpoint.way == "mpi":
        return ok(f"{found}; mpi4py uses {library}")
    if no_mpi is not None and no_mpi.reason in (NoMpi.NOT_INSTALLED, NoMpi.NO_LIBRARY):
        fix = no_mpi.fix or "pip install mpi4py"
        return warn(f"{found}; {no_mpi.message}, so the ranks met by {job.endpoint.way}", fix)
    return ok(found if job.size == 1 else f"{found}; the ranks met by {job.endpoint.way}")


def ranks(job: Job, team: Team) -> Verdict:
    """Count the ranks of each host, and check that all hosts and tasks of the job are used."""
    team.gather("")
    is_alone = job.context.launcher == SINGLE and not job.context.is_chosen  # no launcher started this process
    tasks = tasks_of_job(job.context.environment) if is_alone else 0
    if tasks > 1:
        return warn(
            f"one process, started by no launcher, while the scheduler's job has {tasks} tasks: it would train alone",
            "start it by srun, mpirun or jsrun: one process per task",
        )
    hosts = job.topology.hosts
    counts = [len(host.ranks) for host in hosts]
    if len(set(counts)) == 1:
        text = f"{job.size} on {counted(len(hosts), 'host')}" + (f", {counts[0]} each" if len(hosts) > 1 else "")
    else:
        text = f"{job.size}: " + ", ".join(f"{len(host.ranks)} on {host.name}" for host in hosts)
    listed = job.context.hosts
    if job.context.launcher.first_host_has_no_ranks:
        listed = listed[1:]
    if len(listed) > len(hosts):
        unused = len(listed) - len(hosts)
        return warn(
            f"{text}; the job has {len(listed)} hosts, {unused} of them without a rank",
            job.context.launcher.ranks_per_host.format(n="N") or "start ranks on all hosts, or ask for fewer",
        )
    if len(set(counts)) > 1:
        return warn(
            f"{text}: uneven, so the others wait for the fullest host",
            job.context.launcher.ranks_per_host.format(n=min(counts)) or f"start {min(counts)} per host",
        )
    return ok(text)


def versions(job: Job, team: Team) -> Verdict:
    """Check that all ranks have the same Python, torch and packages."""
    found = team.gather({name: version_of(name) for name in _PACKAGES})
    for rank, record in enumerate(job.topology.records):
        found[rank] = {name: getattr(record, name) for name in VERSIONS} | found[rank]
    differing = [name for name in found[0] if len({versions[name] for versions in found}) > 1]
    if differing:
        texts = [f"{name}: {grouped([v[name] or 'none' for v in found], job.topology)}" for name in differing]
        return fail(" | ".join(texts), "install the same on all hosts, or one environment on a folder they share")
    text = ", ".join(f"{name} {version}" for name, version in found[0].items() if version)
    if lack := FEATURES[RUNNER].shortfall(found[0]["torch"]):
        return fail(f"{text}: the runner {lack}", f"pip install 'torch>={number_of(FEATURES[RUNNER].floor)}'")
    lacks = ", ".join(f"{one.name} ({number_of(one.floor)})" for one in lacking(found[0]["torch"]))
    return ok(f"{text}; not with this torch: {lacks}" if lacks and found[0]["torch"] else text)


def settings(job: Job, team: Team) -> Verdict:
    """Check that the user's own variables, which the runner keeps, are the same on all ranks."""
    kept = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    is_own = job.context.launcher.has_store
    own = {name: os.environ.get(name, "") for name in kept if name in job.context.environment and not is_own}
    everyone = team.gather(own)
    if any(other != everyone[0] for other in everyone):
        names = sorted({name for other in everyone for name in other if other.get(name) != everyone[0].get(name)})
        texts = [f"{n}: {grouped([o.get(n) or 'unset' for o in everyone], job.topology)}" for n in names]
        return warn("your settings differ: " + " | ".join(texts), "export them on all hosts alike (mpirun -x NAME)")
    return ok(", ".join(f"{name}={value}" for name, value in everyone[0].items()) or "none of yours")


def torch_import(job: Job, team: Team) -> Verdict:
    """Time ``import torch`` on each host, with all its ranks at once."""
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
    """Return the check that a backend loads, and is the same on all ranks."""

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
