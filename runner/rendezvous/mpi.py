"""The rendezvous by MPI: a gather and a broadcast of records, and an address of rank 0 that every host reaches."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from runner.errors import RendezvousError, raised_on_all_ranks
from runner.launch.context import LaunchContext
from runner.rendezvous.client import answers
from runner.rendezvous.endpoint import Endpoint, listen
from runner.rendezvous.interfaces import interface_towards, own_addresses
from runner.rendezvous.mpi_library import load_mpi
from runner.rendezvous.record import RankRecord
from runner.rendezvous.records import Records, flat, packed
from runner.rendezvous.server import Server

if TYPE_CHECKING:
    from mpi4py import MPI

_PROBE_TIMEOUT = 3.0  # seconds to connect to one address of rank 0


def exchange_by_mpi(context: LaunchContext, own: RankRecord) -> tuple[Records, Endpoint]:
    """Exchange the records, and agree on an address of rank 0.

    Rank 0 gathers the records and broadcasts them packed (equal values once), so that no other rank handles one record per
    rank. The job's key goes with them; only MPI carries it.

    Raises:
        RendezvousError: no address of rank 0 is reachable from every host.
    """
    world = load_mpi(context).COMM_WORLD
    listener, told = None, None
    gathered = world.gather(flat(own))
    if world.rank == 0:
        is_one_network = len({record["host_key"] for record in gathered}) == 1
        listener = listen(loopback=is_one_network)
        addresses = [] if is_one_network else own_addresses(context.environment)
        told = (packed(gathered), *listener.getsockname()[:2], addresses, os.urandom(32))
    everyone, host, port, addresses, key = world.bcast(told)
    records = Records.received(everyone)
    networks = records.by_value("host_key")
    if len(networks) > 1:
        leaders = {ranks[0] for _, ranks in networks}
        host = _reachable_by_all(world, listener, port, addresses, key, leaders, records)
    interface = interface_towards(host)
    return records, Endpoint(host=host, port=port, interface=interface, way="mpi", key=key, listener=listener)


def _reachable_by_all(
    world: MPI.Intracomm,
    listener: socket.socket | None,
    port: int,
    addresses: list[tuple[str, str]],
    key: bytes,
    leaders: set[int],
    records: Records,
) -> str:
    """The first of rank 0's addresses to which one rank of every host, or container with a network of its own, has connected."""
    reached: list[str] | None = None
    if world.rank in leaders and world.rank != 0:
        reached = [address for _, address in addresses if _answers(address, port, key)]
    done = world.Ibarrier()
    if listener is not None:
        with Server(listener, key, world.size, largest=0) as server:
            while not done.Test():
                list(server.receive(0.005))  # clients send no message: the answer to their greeting is enough
    done.Wait()
    reports = world.gather(reached)
    common, problem = world.bcast(None if reports is None else _judged(reports, addresses, records))
    with raised_on_all_ranks():
        if not common:
            raise RendezvousError(problem, fix="open a path for TCP, or set MASTER_ADDR and MASTER_PORT")
    return str(common)


def _judged(
    reports: list[list[str] | None], addresses: list[tuple[str, str]], records: Records
) -> tuple[str | None, str]:
    """(the first address that all ranks that tried have reached, or None; the error message if there is none)."""
    common = [address for _, address in addresses if all(r is None or address in r for r in reports)]
    if common:
        return common[0], ""
    offered = ", ".join(f"{address} ({interface})" for interface, address in addresses) or "none"
    unreachable = [
        f"{records[rank].host} reached {', '.join(r) or 'none'}" for rank, r in enumerate(reports) if r is not None
    ]
    return None, (
        f"no address of rank 0's host {records[0].host} is reachable from every host; it offered {offered}; "
        f"{'; '.join(unreachable)}"
    )


def _answers(address: str, port: int, key: bytes) -> bool:
    """Whether this job's rank 0 listens there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return answers(family, (address, port), key, _PROBE_TIMEOUT)
