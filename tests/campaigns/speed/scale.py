"""What the rendezvous of very many ranks costs each of them: time and memory, of records as those ranks would send them.

    python -m tests.campaigns.speed.scale [RANKS] [RANKS_PER_HOST] [CORES_PER_HOST]

Every rank is bound to its share of the host's cores, which is what makes records differ most. Two hundred ranks on two
cores tell nothing about this, so the records are made here; the code that handles them is the runner's own. MPI's and the
network's own time is not in it.
"""

from __future__ import annotations

import pickle
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runner.base.errors import Policy
from runner.hardware.resources import Resources, as_record, cores_text
from runner.joining import place
from runner.launch.detect import detect
from runner.rendezvous.records.compatibility import compare_ranks
from runner.rendezvous.records.record import own_record
from runner.rendezvous.records.records import Flat, Records, flat, packed


def records(ranks: int, per_host: int, cores: int) -> list[Flat]:
    """The ranks' flat records."""
    environment = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": str(ranks),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(per_host),
    }
    share = max(1, cores // per_host)
    found = []
    for rank in range(ranks):
        local = rank % per_host
        own = Resources(
            cores=cores_text(range(local * share, (local + 1) * share)), host_cores=cores, quota=None, gpus=[]
        )
        record = own_record(
            detect(environment),
            problem=None,
            target="train.py",
            digest="0" * 16,
            arguments=["--lr", "0.1", "--epochs", "10"],
            resources=as_record(own),
        )
        host = f"node{rank // per_host}"
        found.append(
            flat(replace(record, rank=rank, local_rank=local, host=host, host_key=f"{host}/boot/net", pid=10**6 + rank))
        )
    return found


def main(ranks: int = 10_000, per_host: int = 128, cores: int = 256) -> None:
    """Print what each step takes."""
    everyone = records(ranks, per_host, cores)
    one = len(pickle.dumps(everyone[-1]))
    sent = [pickle.dumps(record) for record in everyone]
    message = _timed(
        "rank 0: read all records, and find what differs", lambda: packed([pickle.loads(text) for text in sent])
    )
    wire = pickle.dumps(message)
    print(f"{'a record':>60}  {one} bytes; what all ranks are told: {len(wire) / 1e6:.3f} MB")
    tracemalloc.start()
    told = _timed("every rank: read what it is told", lambda: Records.received(pickle.loads(wire)))
    topology = _timed("every rank: compare, and see who is where", lambda: compare_ranks(told))
    context = detect({})
    placements = _timed("every rank: place all ranks", lambda: place(context, topology, "cpu", Policy.STRICT))
    _timed("every rank: all local ranks", lambda: [topology.local_rank(rank) for rank in range(ranks)] and None)
    held, _ = tracemalloc.get_traced_memory()
    assert len(placements) == ranks
    print(f"{'held by every rank':>60}  {held / 1e6:.2f} MB")


def _timed(what: str, work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = work()
    print(f"{what:>60}  {time.perf_counter() - start:.3f} s", flush=True)
    return result


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
