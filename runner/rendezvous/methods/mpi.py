"""The rendezvous by MPI: a gather and a broadcast of records, and an address of rank 0 that every host reaches."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from runner.base.errors import RendezvousError, UsageError, raised_on_all_ranks
from runner.launch.context import LaunchContext
from runner.launch.siblings import HOW_TO_START
from runner.rendezvous.methods.mpi_library import load_mpi
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records, flat, is_flat, packed
from runner.rendezvous.records.topology import ranks_text
from runner.rendezvous.transport.client import answers
from runner.rendezvous.transport.endpoint import Endpoint, listen
from runner.rendezvous.transport.interfaces import interface_towards, own_addresses
from runner.rendezvous.transport.server import Server

if TYPE_CHECKING:
    from mpi4py import MPI

_PROBE_TIMEOUT = 3.0  # seconds to connect to one address of rank 0


# In what rank 0 broadcasts: plain data, which no version fails to unpickle, with a mark that no other program sends.
_MARK = "the runner's records"


def exchange_by_mpi(context: LaunchContext, own: RankRecord) -> tuple[Records, Endpoint]:
    """Exchange the records, and agree on an address of rank 0.

    Rank 0 gathers the records and broadcasts them packed (equal values once), so that no other rank handles one record per
    rank. The job's key goes with them; only MPI carries it, and only to ranks that have sent a record.

    Raises:
        RendezvousError: no address of rank 0 is reachable from every host.
        UsageError: some ranks are another program, or another version of the runner, which makes the same calls of MPI.
    """
    world = load_mpi(context).COMM_WORLD
    listener: socket.socket | None = None
    answer: dict[str, Any] | None = None
    gathered = _exchanged(lambda: world.gather(flat(own)))
    if world.rank == 0:
        others = [rank for rank, record in enumerate(gathered) if not _is_record(record, rank, world.size)]
        if others:
            answer = {"mark": _MARK, "others": others}  # the rest is not sent
        else:
            is_one_network = len({record["host_key"] for record in gathered}) == 1
            listener = listen(loopback=is_one_network)
            addresses = [] if is_one_network else own_addresses(context.environment)
            host, port = listener.getsockname()[:2]
            answer = {"mark": _MARK, "others": [], "host": host, "port": port, "addresses": addresses}
            answer |= {"key": os.urandom(32), "records": packed(gathered)}
    answer = _exchanged(lambda: world.bcast(answer))
    if not isinstance(answer, dict) or answer.get("mark") != _MARK:
        answer = {"others": [0]}
    if answer["others"]:
        # (Not raised on all ranks: the other program's would not finalise MPI with these.)
        named = ranks_text(answer["others"])
        raise UsageError(f"another program, or another version of the runner, runs as {named}", fix=HOW_TO_START)
    records, host, port, key = Records.received(answer["records"]), answer["host"], answer["port"], answer["key"]
    networks = records.by_value("host_key")
    if len(networks) > 1:
        leaders = {ranks[0] for _, ranks in networks}
        host = _reachable_by_all(world, listener, port, answer["addresses"], key, leaders, records)
    interface = interface_towards(host)
    return records, Endpoint(host=host, port=port, interface=interface, way="mpi", key=key, listener=listener)


def _is_record(value: Any, rank: int, size: int) -> bool:
    return is_flat(value) and (value.get("rank"), value.get("size")) == (rank, size) and "host_key" in value


def _exchanged(call: Callable[[], Any]) -> Any:
    """The result of a collective.

    Raises:
        UsageError: MPI or pickle say that what came is not what was sent.
    """
    try:
        return call()
    except Exception as error:
        raise UsageError(
            f"the first exchange by MPI failed ({type(error).__name__}: {str(error).splitlines()[0]}), as where some of the "
            "ranks are another program, or another version of the runner",
            fix=HOW_TO_START,
        ) from None


def _reachable_by_all(
    world: MPI.Intracomm,
    listener: socket.socket | None,
    port: int,
    addresses: Sequence[tuple[str, str]],
    key: bytes,
    leaders: set[int],
    records: Records,
) -> str:
    """The first of rank 0's addresses to which one rank of every host, or container with a network of its own, has connected."""
    reached: list[str] | None = None
    if world.rank in leaders and world.rank != 0:
        from concurrent.futures import ThreadPoolExecutor

        # All at once: a packet that is dropped takes the whole time limit.
        with ThreadPoolExecutor(max(1, len(addresses))) as pool:
            answered = list(pool.map(lambda pair: _answers(pair[1], port, key), addresses))
        reached = [address for (_, address), is_reached in zip(addresses, answered, strict=True) if is_reached]
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
    reports: list[list[str] | None], addresses: Sequence[tuple[str, str]], records: Records
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
