"""The ways in which ranks meet, and the order in which they are tried."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import NamedTuple

from runner.base.errors import LaunchError, Policy, RefusedError, RunnerError, UsageError, raised_on_all_ranks
from runner.launch.context import LaunchContext
from runner.launch.launchers import Kind
from runner.rendezvous.methods.mpi import exchange_by_mpi
from runner.rendezvous.methods.mpi_library import NoLibraryError, mpi_unavailable
from runner.rendezvous.methods.sockets import by_environment, by_file, by_hosts, own_endpoint
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records
from runner.rendezvous.records.topology import ranks_text
from runner.rendezvous.transport.endpoint import Endpoint, MpiUnavailable, NoMpi, listen
from runner.rendezvous.transport.interfaces import interface_towards, is_loopback, own_addresses

WAYS = ("auto", "env", "mpi", "file", "hosts")

_SOCKET_WAYS = {"env": by_environment, "file": by_file, "hosts": by_hosts}


@dataclass(frozen=True, kw_only=True)
class RendezvousMethod:
    """The way of the rendezvous, chosen once."""

    name: str  # env, mpi, file, hosts; single where there is one rank
    why: str
    no_mpi: MpiUnavailable | None = None  # why MPI is not used
    is_asked_for: bool = False  # by --rendezvous


class Rendezvous(NamedTuple):
    """The result of the rendezvous: all records in rank order, and where the store is."""

    records: Records
    endpoint: Endpoint
    why: str  # why this way was taken


def choose_way(context: LaunchContext, wanted: str = "auto", *, restarts: bool = False) -> RendezvousMethod:
    """The way that is asked for (one of ``WAYS``), or the first that is possible.

    Args:
        restarts: ranks are to be started again without their launcher (``--restart-in-place``).

    Raises:
        LaunchError: none is possible; the message says what to set or install.
        UsageError: the way asked for is not possible here.
    """
    if context.size.value == 1:
        return RendezvousMethod(name="single", why="one rank")
    if restarts and (context.launcher.has_store or wanted == "mpi"):
        what = (
            "torchrun starts ranks again itself (--max-restarts)" if context.launcher.has_store else "--rendezvous mpi"
        )
        with raised_on_all_ranks():
            raise UsageError(f"--restart-in-place cannot be used here: {what}", fix="leave one of the two out")
    if wanted != "auto":
        if problem := _impossible(context, wanted):
            with raised_on_all_ranks():  # they have the same command line and launcher
                raise problem
        return RendezvousMethod(name=wanted, why="chosen by --rendezvous", is_asked_for=True)
    if context.user_endpoint and not context.launcher.has_store:
        return RendezvousMethod(name="env", why="MASTER_ADDR and MASTER_PORT are set")
    no_mpi = mpi_unavailable(context)
    if restarts:
        no_mpi = MpiUnavailable(NoMpi.RESTARTS, "MPI does not let ranks start again (--restart-in-place)")
    if no_mpi is None:
        return RendezvousMethod(name="mpi", why=f"started by {context.launcher.title}, and mpi4py is installed")
    if context.on_one_host and context.job_id:
        return RendezvousMethod(name="file", why=f"one host; no MPI: {no_mpi}", no_mpi=no_mpi)
    if context.hosts and context.job_id:
        return RendezvousMethod(name="hosts", why=f"the hosts are known; no MPI: {no_mpi}", no_mpi=no_mpi)
    problem = LaunchError(
        f"nothing says where {context.size.value} ranks are to meet: {no_mpi}, and neither {context.launcher.title} "
        "nor a scheduler lists the hosts",
        fix=f"{'' if restarts else 'install mpi4py, or '}set MASTER_ADDR (rank 0's host) and MASTER_PORT (a free port)",
    )
    if os.path.isabs(context.environment.get("PBS_NODEFILE", "")):
        raise problem  # only the job's first host may have that file, so rank 0 may find no problem
    with raised_on_all_ranks():
        raise problem


def _impossible(context: LaunchContext, way: str) -> RunnerError | None:
    """The error if the way asked for is not possible here."""
    if way == "env" and context.user_endpoint is None:
        return UsageError("--rendezvous env needs MASTER_ADDR and MASTER_PORT, both of them")
    if way == "hosts" and not context.hosts:
        return UsageError("--rendezvous hosts: neither launcher nor scheduler lists the hosts")
    if way in ("file", "hosts") and context.job_id is None:
        return LaunchError(
            f"{context.launcher.title} gives this job no name that its hosts share",
            fix="install mpi4py, or set MASTER_ADDR and MASTER_PORT",
        )
    return None


def rendezvous(
    context: LaunchContext,
    own: RankRecord,
    *,
    way: RendezvousMethod,
    timeout: float = 300.0,
    policy: Policy = Policy.STRICT,
    keeps_socket: bool = False,
) -> Rendezvous:
    """Exchange the records of all ranks, and agree on an endpoint that rank 0 holds.

    Args:
        timeout: seconds until all ranks must have met.
        policy: for a diagnostic tool, another way is tried where MPI proves to be another launcher's.
        keeps_socket: whether rank 0's own socket stays open under torchrun, which serves the store.

    Raises:
        RendezvousError: the ranks could not meet.
        UsageError: the way asked for is not possible here.
    """
    why, no_mpi = way.why, way.no_mpi
    if way.name == "single":
        records, endpoint = Records.of([own]), own_endpoint(listen(loopback=True), "single")
    elif way.name == "mpi":
        try:
            records, endpoint = exchange_by_mpi(context, own)
        except (RefusedError, NoLibraryError) as error:
            # srun offers its kind of PMI also to an MPI of another kind, or to none: then MPI is of no use, and not needed.
            is_needed = way.is_asked_for or (context.launcher.kind is not Kind.SCHEDULER and policy is Policy.STRICT)
            if is_needed or not context.job_id or not (context.hosts or context.on_one_host):
                raise
            is_wrong = isinstance(error, RefusedError)
            no_mpi = MpiUnavailable(NoMpi.WRONG_LIBRARY if is_wrong else NoMpi.NO_LIBRARY, error.message, error.fix)
            why = f"the hosts are known; no MPI: {no_mpi}"
            records, endpoint = (by_hosts if context.hosts else by_file)(context, own, timeout)
    else:
        records, endpoint = _SOCKET_WAYS[way.name](context, own, timeout)
    if context.has_fresh_store and context.user_endpoint:
        endpoint = _launchers_endpoint(context, context.user_endpoint, endpoint, keeps_socket=keeps_socket)
    if len(records.of_field("host_key")[0]) > 1 and is_loopback(endpoint.interface):
        if endpoint.way == "file":
            _refuse_networks_of_one_host(records)
        # A host may resolve its own name to 127.0.1.1 (Debian's /etc/hosts), which other hosts cannot reach.
        others = own_addresses(context.environment)
        endpoint = replace(endpoint, interface=others[0][0] if others else "")
    return Rendezvous(records, replace(endpoint, mpi_unavailable=no_mpi), why)


@raised_on_all_ranks()
def _refuse_networks_of_one_host(records: Records) -> None:
    """Refuse ranks that have met by a file of their host, and cannot reach one another's loopback addresses.

    Raises:
        RefusedError: always.
    """
    groups = "; ".join(ranks_text(ranks) for _, ranks in records.by_value("host_key"))
    raise RefusedError(
        f"the ranks are on one host, but do not see the same network ({groups}), as in containers with a network each",
        fix="give the containers the host's network (--network=host), or set MASTER_ADDR and MASTER_PORT",
    )


def _launchers_endpoint(
    context: LaunchContext, store: tuple[str, int], own: Endpoint, *, keeps_socket: bool
) -> Endpoint:
    """The endpoint of the store that the launcher (torchrun) serves already."""
    host, port = store
    if own.listener is not None and not keeps_socket:
        own.listener.close()
        own = replace(own, listener=None)
    return replace(
        own,
        host=host,
        port=port,
        interface=interface_towards(host),
        way=context.launcher.name,
        is_launchers=True,
        rank_0=(own.host, own.port),
    )
