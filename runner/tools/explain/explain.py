"""``python -m runner explain``: show the ranks, where they meet, which devices and threads they use, and why.

Under any launcher, for example ``mpirun -np 4 python -m runner explain``. ``--json`` prints one object. With a workload's
options of parallelism (``explain --tp 2 --pp 2``) it shows which rank gets which part of the model and the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from runner.base.settings import add_options
from runner.hardware.resources import of_record
from runner.job import Job
from runner.options.parsing import ALL, Parser, add_full_help, wants
from runner.parallel.mesh import Layout, lay_out
from runner.parallel.settings import ParallelSettings
from runner.tools.tables.table import Column, console, print_columns
from runner.torchrun.variables import settings
from runner.versions.features import lacking, number_of


def explain(job: Job, argv: list[str]) -> None:
    """Print what was detected, once, on rank 0."""
    parser = Parser(prog="python -m runner explain", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    add_full_help(parser)
    add_options(parser, ParallelSettings, show="all" if wants(argv, ALL) else "some")
    values = vars(parser.parse_args(argv))
    is_json, options = values.pop("json"), ParallelSettings(**values)
    layout = lay_out(job.topology, options.degrees(job.size))
    if job.rank != 0:
        return
    facts = facts_of(job, layout, options)
    if is_json:
        print(json.dumps(facts, indent=1))
    else:
        _print_tables(facts)


def facts_of(job: Job, layout: Layout, options: ParallelSettings) -> dict[str, Any]:
    """Return the facts that ``--json`` prints."""
    context, topology = job.context, job.topology
    return {
        "launcher": {"name": context.launcher.name, "title": context.launcher.title, "why": context.why},
        "site": job.context.environment.get("RUNNER_SITE", ""),
        "ignored": [{"variables": list(i.names), "why": i.why} for i in context.ignored],
        "size": job.size,
        "sources": topology.records[0].sources,
        "rendezvous": {"way": job.endpoint.way, "why": job.rendezvous_why},
        "backend": {"name": job.backend, "why": job.backend_why},
        "endpoint": {"host": job.endpoint.host, "port": job.endpoint.port, "interface": job.endpoint.interface},
        "imports": _imports(job),
        "binding": _binding(job),
        "settings": settings(job),
        "versions": {name: getattr(topology.records[0], name) for name in ("runner", "python", "torch")},
        "not_with_it": [f"{one.name} (torch {number_of(one.floor)})" for one in lacking(topology.records[0].torch)],
        "hosts": [{"name": host.name, "ranks": list(host.ranks)} for host in topology.hosts],
        "mesh": asdict(layout.degrees),
        "ranks": [
            _rank_facts(job, rank) | {"mesh": _place(layout, options.stage_owners, rank)} for rank in range(job.size)
        ],
    }


def _imports(job: Job) -> str:
    """Say how often torch is imported on a host where ranks start."""
    if job.imports_why:
        return f"per rank: {job.imports_why}"
    records = job.topology.records
    for host in job.topology.hosts:
        if (found := len({records[rank].importer for rank in host.ranks})) > 1:
            return (
                f"{found} times on host {host.name}: its ranks differ in variables, limits, control groups or in the process that "
                "has started them"
            )
    return "once per host"


def _binding(job: Job) -> str:
    """Say which cores the launcher gave the ranks, and what the runner made of it."""
    changed = [placement for placement in job.placements if placement.bound]
    if not changed:
        return f"as {job.context.launcher.title} has left it"
    given = "; ".join(sorted({placement.given for placement in changed}))
    return f"each rank has cores of its own by --bind, where {job.context.launcher.title} gave {len(changed)} rank{'s' * (len(changed) > 1)} cores {given}"


def _place(layout: Layout, stage_owners: list[int], rank: int) -> dict[str, Any]:
    """Return a rank's place in the mesh: its stages, its replica and shard of the model, its shard of each layer."""
    place = layout.place(rank)
    stages = [stage for stage, owner in enumerate(stage_owners) if owner == place["pipeline"]]
    return place | {"stages": stages, "data": layout.data_rank(rank)}


def _rank_facts(job: Job, rank: int) -> dict[str, Any]:
    topology, record, placement = job.topology, job.topology.records[rank], job.placements[rank]
    return {
        "rank": rank,
        "host": record.host,
        "host_index": topology.host_index(rank),
        "local_rank": topology.local_rank(rank),
        "local_size": topology.local_size(rank),
        "sources": record.sources,
        "pid": record.pid,
        "device": placement.torch_device,
        "gpus_visible": len(of_record(record.resources).gpus),
        "cores": placement.cores,
        "core_list": placement.bound or placement.given,
        "given_cores": placement.given,
        "threads": placement.threads,
        "threads_source": placement.threads_source,
        "warning": placement.warning,
        "gpu_warning": placement.gpu_warning,
    }


def _print_tables(facts: dict[str, Any]) -> None:
    from rich.table import Table

    launcher, endpoint, rendezvous, ranks = facts["launcher"], facts["endpoint"], facts["rendezvous"], facts["ranks"]
    lines = [
        ("launcher", f"{launcher['title']}: {launcher['why']}"),
        ("values", ", ".join(f"{name} from {source}" for name, source in facts["sources"].items())),
        (
            "endpoint",
            f"{endpoint['host']}:{endpoint['port']} on interface {endpoint['interface'] or 'unknown'} "
            f"(by {rendezvous['way']}: {rendezvous['why']})",
        ),
        ("backend", f"{facts['backend']['name']} ({facts['backend']['why']})"),
        *(("ignored", f"{', '.join(ignored['variables'])}: {ignored['why']}") for ignored in facts["ignored"]),
        *[("site", facts["site"] + ": as the job script says (RUNNER_SITE)")] * bool(facts["site"]),
        ("versions", ", ".join(f"{name} {version or 'none'}" for name, version in facts["versions"].items())),
        *[("not with it", "; ".join(facts["not_with_it"]))] * bool(facts["not_with_it"]),
        ("sets", " ".join(map(_setting, facts["settings"].items())) or "nothing: you have set all of it"),
        ("imports", facts["imports"]),
        ("binding", facts["binding"]),
        ("threads", f"{ranks[0]['threads']} per rank: {ranks[0]['threads_source']}"),
        *(("warning", text) for text in dict.fromkeys(rank["warning"] for rank in ranks if rank["warning"])),
        *(("GPUs", text) for text in dict.fromkeys(_gpu_texts(ranks))),
    ]
    out = console()
    grid = Table.grid(padding=(0, 4))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(label, text)
    out.print(grid)
    columns = {"rank": "rank", "host": "host", "local_rank": "local rank", "device": "device", "core_list": "cores"}
    columns |= {"threads": "threads", "pid": "process"}
    for rank in ranks:
        rank |= {name: rank["mesh"][dimension] for name, dimension in _MESH.items()}
        rank["stages"] = ", ".join(map(str, rank["mesh"]["stages"]))
    if any(number > 1 for name, number in facts["mesh"].items() if name != "replicate"):
        columns |= {name: name for name in _MESH if facts["mesh"][_MESH[name]] > 1}
    print()
    print_columns(
        "",
        [
            Column(
                title=title,
                cells=[str(rank[key]) for rank in ranks],
                justify="left" if title in ("host", "device", "cores") else "right",
            )
            for key, title in columns.items()
        ],
    )


def _gpu_texts(ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the warnings about GPUs, each with its host if there are several."""
    hosts = {rank["host"] for rank in ranks}
    for rank in ranks:
        if rank["gpu_warning"]:
            yield f"{rank['host']}: {rank['gpu_warning']}" if len(hosts) > 1 else rank["gpu_warning"]


_MESH = {
    "stages": "pipeline",
    "replica": "replicate",
    "shard": "shard",
    "part of layers": "tensor",
}  # column: dimension


def _setting(pair: tuple[str, str]) -> str:
    """``NAME=value`` as in a shell. NCCL's value "=eth0" (exactly this interface) is quoted."""
    name, value = pair
    return f"{name}={value if value[:1].isalnum() else repr(value)}"
