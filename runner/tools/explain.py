"""``python -m runner explain``: who the ranks are, where they meet, what they compute with, and why.

Under any launcher, for example ``mpirun -np 4 python -m runner explain``. ``--json`` prints one object.
"""

from __future__ import annotations

import json
from typing import Any

from runner.comm.environment import settings
from runner.comm.job import Job
from runner.comm.process_group import backend_for
from runner.launch.processes import on_terminal
from runner.options import Parser


def explain(job: Job, argv: list[str]) -> None:
    """Print what was found out, once, on rank 0."""
    parser = Parser(prog="python -m runner explain", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    as_json = parser.parse_args(argv).json
    if job.rank != 0:
        return
    facts = facts_of(job)
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        _print_tables(facts)


def facts_of(job: Job) -> dict[str, Any]:
    """All that ``--json`` prints."""
    context, topology = job.context, job.topology
    return {
        "launcher": {"name": context.launcher.name, "title": context.launcher.title, "why": context.why},
        "ignored": [{"variables": list(i.names), "why": i.why} for i in context.ignored],
        "size": job.size,
        "sources": topology.records[0]["sources"],
        "rendezvous": {"way": job.endpoint.way, "why": job.meeting},
        "backend": dict(zip(("name", "why"), backend_for(job), strict=True)),
        "endpoint": {"host": job.endpoint.host, "port": job.endpoint.port, "interface": job.endpoint.interface},
        "settings": settings(job),
        "versions": {name: topology.records[0][name] for name in ("runner", "python", "torch")},
        "hosts": [{"name": host.name, "ranks": list(host.ranks)} for host in topology.hosts],
        "ranks": [_rank_facts(job, rank) for rank in range(job.size)],
    }


def _rank_facts(job: Job, rank: int) -> dict[str, Any]:
    topology, record, placement = job.topology, job.topology.records[rank], job.placements[rank]
    return {
        "rank": rank,
        "host": record["host"],
        "host_index": topology.host_index(rank),
        "local_rank": topology.local_rank(rank),
        "local_size": topology.local_size(rank),
        "sources": record["sources"],
        "pid": record["pid"],
        "device": placement.torch_device,
        "gpus_visible": len(record["resources"]["gpus"]),
        "cores": placement.cores,
        "threads": placement.threads,
        "threads_source": placement.threads_source,
        "warning": placement.warning,
    }


def _print_tables(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True, force_terminal=on_terminal())
    launcher, endpoint, sources = facts["launcher"], facts["endpoint"], facts["sources"]
    console.print(f"launcher    [bold]{launcher['title']}[/bold]: {launcher['why']}", markup=True)
    console.print("values      " + ", ".join(f"{name} from {source}" for name, source in sources.items()), markup=False)
    console.print(
        f"endpoint    {endpoint['host']}:{endpoint['port']} on interface {endpoint['interface'] or 'unknown'} "
        f"(by {facts['rendezvous']['way']}: {facts['rendezvous']['why']})",
        markup=False,
    )
    console.print(f"backend     {facts['backend']['name']} ({facts['backend']['why']})", markup=False)
    for ignored in facts["ignored"]:
        console.print(f"ignored     {', '.join(ignored['variables'])}: {ignored['why']}", markup=False)
    console.print("versions    " + ", ".join(f"{n} {v or 'none'}" for n, v in facts["versions"].items()), markup=False)
    given = " ".join(f"{name}={value}" for name, value in facts["settings"].items())
    console.print(f"sets        {given or 'nothing: you have set all of it'}", markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = {"rank": "rank", "host": "host", "local_rank": "local rank", "device": "device", "cores": "cores"}
    for title in (*columns.values(), "threads", "process"):
        table.add_column(title, justify="left" if title in ("host", "device") else "right")
    for rank in facts["ranks"]:
        table.add_row(*(str(rank[key]) for key in columns), str(rank["threads"]), str(rank["pid"]))
    console.print()
    console.print(table)
    for text in dict.fromkeys(rank["warning"] for rank in facts["ranks"] if rank["warning"]):
        console.print(f"warning     {text}", markup=False)
    console.print(f"\nthreads: {facts['ranks'][0]['threads_source']}", markup=False)
