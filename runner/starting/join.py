"""How this process becomes a rank of its job: what it tells the other ranks, and what it knows once they have met."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from runner.backends.registry import installed_packages
from runner.backends.selection import with_backend
from runner.base.errors import Policy, UsageError, raised_on_all_ranks
from runner.base.process_stat import process_stat
from runner.guard.report.board import Board
from runner.hardware.binding import AUTO, NONE
from runner.hardware.placement import Placement, place_all
from runner.hardware.resources import of_record, resources
from runner.job import Job
from runner.launch.context import LaunchContext
from runner.options.job_settings import JobSettings
from runner.rendezvous.records.record import RankRecord, own_record
from runner.rendezvous.records.topology import Topology
from runner.rendezvous.rendezvous import Rendezvous
from runner.rendezvous.transport.interfaces import absent_interfaces, nccl_interface


def record_of(
    context: LaunchContext,
    target: str,
    digest: str,
    arguments: list[str],
    *,
    problem: UsageError | None = None,
    asks_for_gpus: bool,
    guard_port: int = 0,
    options: Sequence[str] = (),
    binding: str = NONE,
) -> RankRecord:
    """Return the record that this rank sends to the others. It says why the rank cannot run its target, if it cannot.

    Args:
        digest: of the target's text.
        guard_port: rank 0's, if it has a guard.
        options: the runner's that have to be equal.
        binding: a value of --bind.
    """
    binds = binding != NONE
    shares_host = binds and (context.local_size or context.size).value > 1
    is_first = context.local_rank is None or context.local_rank.value == 0
    return own_record(
        context,
        problem=problem.message if problem else None,
        fix=problem.fix if problem else "",
        target=target,
        digest=digest,
        arguments=arguments,
        options=list(options),
        packages=installed_packages(),
        absent_interfaces=absent_interfaces(context.environment),
        nccl_interface=nccl_interface(context.environment),
        resources=asdict(
            resources(
                context.environment,
                asks_for_gpus=asks_for_gpus,
                launched_by=_launched_by(context) if binds else 0,
                shares_host=shares_host,
                maps_cores=is_first and (shares_host or binding not in (AUTO, NONE)),
            )
        ),
        guard_port=guard_port,
        importer=os.getppid(),
    )


def _launched_by(context: LaunchContext) -> int:
    """The launcher's process on this host; 0 if it is not seen. A script that it starts around a rank has the rank's variable, too."""
    process, mark = context.process, f"{context.rank.source}=".encode()
    while (started := process_stat(process)) is not None:
        process = started.parent
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:  # another user's
            return process
        if not any(variable.startswith(mark) for variable in variables):
            return process
    return 0


@raised_on_all_ranks()
def place(
    context: LaunchContext, topology: Topology, device: str, policy: Policy, binding: str = NONE
) -> tuple[Placement, ...]:
    """The placements of all ranks, in rank order. Hosts with equal resources share their ``Placement`` objects.

    Args:
        binding: a value of --bind.
    """
    kinds, index = topology.records.of_field("resources")
    numbers = index or [0] * topology.size
    hosts = [(host.name, [numbers[rank] for rank in host.ranks]) for host in topology.hosts]
    placed = place_all(context.launcher, hosts, [of_record(kind) for kind in kinds], device, policy, binding)
    by_rank = {
        rank: placement
        for host, placements in zip(topology.hosts, placed, strict=True)
        for rank, placement in zip(host.ranks, placements, strict=True)
    }
    return tuple(by_rank[rank] for rank in range(topology.size))


def job_of(
    asked: JobSettings,
    context: LaunchContext,
    result: Rendezvous,
    topology: Topology,
    placements: tuple[Placement, ...],
    board: Board,
) -> Job:
    """All that is known once the ranks have met, with the backend that is chosen."""
    job = Job(
        board=board,
        context=context,
        topology=topology,
        endpoint=result.endpoint,
        rendezvous_why=result.why,
        placements=placements,
        device=asked.device,
        collective_timeout=asked.collective_timeout or Job.collective_timeout,
        log_folder=asked.log_dir.resolve() if asked.log_dir else None,
        time_limit=asked.time_limit,
        time_to_save=asked.time_to_save,
        measure=asked.measure,
        timeout_is_asked_for=asked.collective_timeout is not None,
    )
    return with_backend(job, asked.backend or "auto")
