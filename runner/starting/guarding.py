"""Settings of this job's guards: the texts that they print, what they watch, and the address of their link."""

from __future__ import annotations

import time

from runner.base.process_stat import process_stat
from runner.guard.link.link import Address
from runner.guard.settings import Watched, Words
from runner.job import Job
from runner.launch.context import LaunchContext
from runner.launch.launcher_processes import launcher_process
from runner.launch.launchers import launchers
from runner.launch.siblings import siblings_of
from runner.launch.time_limit import margin, time_left
from runner.options.command import Request
from runner.options.job_settings import HANG_TIMEOUT, STAGING_SECONDS
from runner.rendezvous.methods.mpi_library import library_of_launcher
from runner.rendezvous.rendezvous import Rendezvous, RendezvousMethod
from runner.rendezvous.transport.interfaces import own_addresses
from runner.rendezvous.transport.secret import derived

# The share of the collectives' time limit in which a checkpoint is written. The other ranks wait in one meanwhile, and the message at
# its own end would say less.
_OF_LIMIT = 5 / 6

_SCRIPT_SAVES = 30.0  # seconds from SIGTERM, of which a script is told, until it is to have ended


def guard_words(context: LaunchContext, request: Request, way: RendezvousMethod) -> Words:
    """Return the texts that the guard prints about the worker."""
    return Words(
        label=context.label,
        rank=context.rank.value,
        size=context.size.value,
        no_rendezvous=lambda code: _why_no_rendezvous(context, request, way, code),
        find_siblings=lambda: siblings_of(context),
        is_reporting=context.rank.value == 0,
        is_shown_to_the_end=not any(row.drops_output in context.environment for row in launchers()),
        how_to_resume="continue from its last checkpoint with --resume" if request.is_resumable else "",
    )


def guard_watched(context: LaunchContext, request: Request, parent: int, found: bytes) -> Watched:
    """Return what the guard watches.

    Args:
        parent: the parent of the process that the launcher has started.
        found: what the agent has found out for the worker.
    """
    job = request.job
    passed = 0.0 if job.began is None else max(0.0, time.time() - job.began)
    hang_after = HANG_TIMEOUT if job.hang_timeout is None else job.hang_timeout
    save_within = _OF_LIMIT * (job.collective_timeout or Job.collective_timeout)
    left = time_left(context.environment, job.time_limit, passed) if job.on_preempt else None
    return Watched(
        rendezvous_timeout=job.timeout + 10 + (STAGING_SECONDS if job.stage else 0),
        hang_after=hang_after,
        save_within=save_within,
        in_collective=max(hang_after, save_within) if request.may_be_workload else job.hang_timeout or 0.0,
        in_call=hang_after if request.may_be_workload else job.hang_timeout or 0.0,
        trains=request.may_be_workload,
        launcher=lambda: _launcher_of(context, parent),
        is_hub=context.rank.value == 0 and context.size.value > 1,
        found=found,
        log_folder=job.log_dir,
        prefixes_output=job.prefix_output,
        notice=job.on_preempt,
        passed=passed,
        notice_within=None if left is None else left - margin(left, job.time_to_save),
        script_saves_within=job.time_to_save or _SCRIPT_SAVES,
        restarts=job.restart_in_place,
        names={
            "rank": context.rank.value,
            "size": context.size.value,
            "local_rank": context.local_rank.value if context.local_rank else None,
            "host": context.host,
            "addresses": [address for _, address in own_addresses(context.environment)] if job.log_dir else [],
        },
    )


def guards_address(context: LaunchContext, result: Rendezvous) -> Address | None:
    """Return the address of the guards' link for this rank's guard; None if there is no link."""
    port = result.records[0].guard_port
    if not port:
        return None
    host, _ = result.endpoint.rank_0 or (result.endpoint.host, 0)
    key = derived(result.endpoint.key, "guards").hex()
    name = result.records[0].host
    return Address(host=host, port=port, name=name, key=key, rank=context.rank.value, size=context.size.value)


def _why_no_rendezvous(context: LaunchContext, request: Request, way: RendezvousMethod, code: int | None) -> str:
    """Why the worker did not meet the others in time (``code`` is None), or ended without a message of the runner's."""
    if code is not None:
        library = library_of_launcher() or "/path/of/your/mpirun's/lib/libmpi.so"
        hint = f"; MPI ended it, perhaps as it is not {context.launcher.title}'s: MPI4PY_LIBMPI={library}"
        return f"ended with code {code} before the ranks had met{hint if way.name == 'mpi' else ''}"
    reason = "a rank has not started, or cannot be reached"
    if way.name == "mpi":
        reason = f"MPI_Init or the first MPI collective did not end: {reason}"
    return (
        f"the {context.size.value} ranks did not meet within {request.job.timeout:.0f} s (by {way.name}); {reason}; "
        "allow more with --timeout"
    )


def _launcher_of(context: LaunchContext, parent: int) -> int:
    """The id of the process whose end leaves this host's ranks without a launcher; 0 if there is none or it is not seen.

    Args:
        parent: of the process that the launcher has started, when that began.
    """
    if not context.launcher.has_process:
        return 0
    started = process_stat(context.process)
    if context.launcher.is_parent or (started is not None and started.parent != parent):  # which has ended meanwhile
        return parent
    process = launcher_process(context.process)
    return process.pid if process is not None else 0
