"""``python -m runner doctor``: check a cluster, on all ranks together.

Start it as you would start the job: ``mpirun -np 8 --map-by ppr:4:node python -m runner doctor``. It prints a line per
check: ok, warn or fail, what was found, and the fix. Exit code 0, or 1 if a check has failed. --json prints one object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from typing import Any

from runner.backends.fabric import nccl_log
from runner.backends.registry import backends
from runner.job import Job
from runner.options.parsing import Parser
from runner.rendezvous.transport.control_channel import ControlChannel
from runner.tools.doctor import (
    fabric_checks,
    file_checks,
    gpu_checks,
    host_checks,
    launch_checks,
    network_checks,
    speed_checks,
)
from runner.tools.doctor.examine import Check, Verdict, counted, examine
from runner.tools.tables.output import libraries_print_on_stderr
from runner.tools.tables.table import Row, print_rows, show_progress

# They run in this order; those from torch on need torch.
CHECKS = (
    Check(name="launcher", function=launch_checks.launcher),
    Check(name="ranks", function=launch_checks.ranks),
    Check(name="versions", function=launch_checks.versions),
    Check(name="settings", function=launch_checks.settings),
    Check(name="host names", function=network_checks.names, within=8.0),
    Check(name="reach", function=network_checks.reach, within=8.0),
    Check(name="clocks", function=network_checks.clocks, within=8.0),
    Check(name="cores", function=host_checks.cores),
    Check(name="NUMA", function=host_checks.numa),
    Check(name="memory", function=host_checks.memory),
    Check(name="shared memory", function=host_checks.shared_memory),
    Check(name="limits", function=host_checks.limits),
    Check(name="working folder", function=file_checks.working_folder, within=8.0),
    Check(name="torch", function=launch_checks.torch_import, within=60.0),
    Check(name="GPUs", function=gpu_checks.gpus, within=20.0, after=("torch",)),
    *(
        Check(name=known.title, function=launch_checks.backend(known), within=known.patience, after=("torch",))
        for known in backends().values()
        if known.title
    ),
    Check(name="allreduce", function=speed_checks.allreduce, within=12.0, after=("torch",)),
    Check(name="links", function=speed_checks.links, within=10.0, after=("torch", "allreduce")),
)


def doctor(job: Job, argv: list[str]) -> None:
    """Run the checks; rank 0 prints the results.

    Raises:
        SystemExit: with 1 if a check has failed.
    """
    parser = Parser(prog="python -m runner doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--only", type=_named, metavar="NAME,…", help="run these checks only, e.g. --only 'reach,working folder'"
    )
    parser.add_argument(
        "--fabric",
        action="store_true",
        help="find the network by which NCCL, gloo and MPI send between hosts, and nothing else",
    )
    options = parser.parse_args(argv)
    if options.fabric and options.only:
        parser.error("--fabric is a check of its own; leave --only out")
    start = time.monotonic()
    first = job.topology.records[0]
    found: list[tuple[Check, Verdict]] = []
    with ControlChannel(job.rank, job.size, job.endpoint, f"doctor of {first.host_key}/{first.pid}") as channel:
        with ExitStack() as stack:
            if options.json:
                stack.enter_context(libraries_print_on_stderr())
            checks = options.only or CHECKS
            if options.fabric:
                log = fabric_checks.fabric_by(stack.enter_context(nccl_log()))
                checks = (*_named("allreduce"), Check(name="fabric", function=log, within=30.0, after=("allreduce",)))
            for check in checks:
                if job.rank == 0:
                    show_progress(f"checking {check.name} …")
                verdict = examine(check, job, channel)
                if verdict is not None:
                    found.append((check, verdict))
        if options.fabric:  # the others that it needs are told if they fail
            found = [(check, verdict) for check, verdict in found if check.name == "fabric" or verdict.status == "fail"]
        if job.rank == 0:
            show_progress("")
            report = _report(job, found, time.monotonic() - start)
            if options.json:
                print(json.dumps(report, indent=1))
            else:
                rows = [Row(check.name, v.status, v.detail + (f"\n→ {v.fix}" if v.fix else "")) for check, v in found]
                size = f"{counted(job.size, 'rank')} on {counted(len(job.topology.hosts), 'host')}"
                print_rows(rows, "check", f"{size}, {report['seconds']:.1f} s")
        # All ranks exit with the same code, after the report.
        failed = channel.gather("end", any(v.status == "fail" for _, v in found), 10.0, to_all=True)
    if failed[0]:
        sys.exit(1)


def _named(text: str) -> tuple[Check, ...]:
    known = {check.name.lower(): check for check in CHECKS}
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no check {unknown[0]!r}; there are {', '.join(c.name for c in CHECKS)}")
    wanted = {*names, *(before.lower() for name in names for before in known[name].after)}
    return tuple(check for name, check in known.items() if name in wanted)


def _report(job: Job, found: list[tuple[Check, Verdict]], seconds: float) -> dict[str, Any]:
    return {
        "checks": [{"name": check.name, **vars(verdict)} for check, verdict in found],
        "ranks": job.size,
        "hosts": [{"name": host.name, "ranks": list(host.ranks)} for host in job.topology.hosts],
        "seconds": round(seconds, 2),
    }
