"""``python -m runner stage``: send environments, code or data to each host's own disk, for a job's --stage.

    srun --ntasks-per-node=1 python -m runner stage ~/myenv
    srun python -m runner --stage ~/myenv train.py
    srun --ntasks-per-node=1 python -m runner stage --remove

One host reads the files and sends them to the next, and so on; one rank per host is enough. The ranks of the second line find the copies at
the same path. A later `stage` sends only files that have changed. Copies stay for the scheduler's job. Outside of one they stay until a run
that uses them has ended, at most a day; with --keep until --remove.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from runner.base.errors import RunnerError, UsageError
from runner.base.quantities import nonempty_path, size_text
from runner.job import Job
from runner.options.parsing import Parser
from runner.rendezvous.transport.control_channel import ControlChannel
from runner.rendezvous.transport.endpoint import listen, port_of
from runner.rendezvous.transport.interfaces import own_addresses
from runner.rendezvous.transport.secret import derived
from runner.staging.store import clear, job_of, store_folder
from runner.tools.stage.chain import NeighbourError, Sent, Wire, accept, reach, send_tree
from runner.tools.tables.table import show_progress

_MEETING_SECONDS = 60.0
_STAGING_SECONDS = 24 * 3600.0


def stage(job: Job, argv: list[str]) -> None:
    """Send the paths along the hosts, and print what each has got.

    Raises:
        UsageError: a path cannot be staged on some host.
    """
    given = parse_request(argv)
    hosts = job.topology.hosts
    # By name, so that two jobs which send the same path take the locks of common hosts in one order.
    order = sorted(range(len(hosts)), key=lambda n: (hosts[n].name, hosts[n].ranks))
    index = order.index(job.topology.host_index(job.rank))
    leads = job.local_rank == 0
    first = job.topology.records[0]
    with ExitStack() as stack:
        purpose = f"stage of {first.host_key}/{first.pid}"
        channel = stack.enter_context(ControlChannel(job.rank, job.size, job.endpoint, purpose))
        listener = stack.enter_context(listen(loopback=False)) if leads and index + 1 < len(hosts) else None
        addresses = [address for _, address in own_addresses(job.context.environment)]
        where = [[address, port_of(listener)] for address in addresses] if listener else []
        everybody = channel.gather("addresses", where, _MEETING_SECONDS, to_all=True)
        result: dict[str, Any] = {"host": job.context.host, "sent": []}
        if leads:
            before = behind = None
            try:
                key = derived(job.endpoint.key, "stage")
                if given.remove:
                    result |= _remove(given)
                else:
                    above = everybody[hosts[order[index - 1]].ranks[0]]
                    before = reach(above, key, job.rank, _MEETING_SECONDS) if index else None
                    behind = accept(listener, key, _MEETING_SECONDS) if listener else None
                    result |= _send(given, before, behind, shows=job.rank == 0)
            except UsageError as problem:
                result |= {"problem": problem.message, "fix": problem.fix}
            except NeighbourError as problem:
                result |= {"lost": str(problem)}
            except OSError as error:
                result |= {"problem": f"{error.filename or 'a copy'}: {error.strerror}", "fix": ""}
            finally:  # neighbours that wait for this host see its end
                for wire in filter(None, (before, behind)):
                    wire.close()
        results = channel.gather("results", result, _STAGING_SECONDS, to_all=True)
    silent = {"lost": "it has not answered"}
    _report(job, [results[host.ranks[0]] or {"host": host.name, **silent} for host in hosts])


def parse_request(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options of the tool."""
    parser = Parser(prog="python -m runner stage", description=__doc__)
    parser.add_argument("paths", nargs="*", type=nonempty_path, metavar="PATH", help="folder or file")
    parser.add_argument(
        "--to",
        type=nonempty_path,
        metavar="DIR",
        help="folder of the host's own disk (default: SLURM_TMPDIR, LOCAL_SCRATCH, PBS_JOBFS or TMPDIR, else /tmp)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the copies for later jobs, until --remove")
    parser.add_argument("--remove", action="store_true", help="remove all copies on these hosts that nobody uses")
    given = parser.parse_args(argv)
    if bool(given.paths) == given.remove:
        parser.error("name what to send, or --remove")
    return given


def _send(given: Any, before: Wire | None, behind: Wire | None, *, shows: bool) -> dict[str, Any]:
    folder, job = store_folder(given.to, os.environ), job_of(os.environ)
    sent: list[Sent] = []
    for path in given.paths:

        def report(done: int, total: int, path: Any = path) -> None:
            if shows:
                show_progress(f"{path}: {size_text(done, 1024)} of {size_text(total, 1024)}")

        _, found = send_tree(path, folder, job=job, keep=given.keep, before=before, behind=behind, report=report)
        sent.append(found)
    if shows:
        show_progress("")
    clear(folder, job=job)
    return {"sent": [asdict(one) for one in sent]}


def _remove(given: Any) -> dict[str, Any]:
    return {"removed": [str(path) for path in clear(store_folder(given.to, os.environ), job="", keep=False)]}


def _report(job: Job, results: list[dict[str, Any]]) -> None:
    """Print what each host has; all ranks end with the first problem.

    Raises:
        UsageError: a host has one.
        RunnerError: a host, or its network, has failed.
    """
    for one in (one for one in results if "problem" in one):
        raise UsageError(f"host {one['host']}: {one['problem']}", fix=one["fix"])
    for one in (one for one in results if "lost" in one):
        raise RunnerError(f"host {one['host']}: {one['lost']}")
    if job.rank == 0:
        for one in results:
            for sent in one["sent"]:
                copied = f"{size_text(sent['copied'], 1024)} copied" if sent["copied"] else "nothing to copy"
                print(
                    f"{one['host']}: {sent['path']}: {size_text(sent['bytes'], 1024)} in {sent['entries']} entries, "
                    f"{copied}, {sent['seconds']:.1f} s"
                )
            if one.get("removed") == []:
                print(f"{one['host']}: nothing to remove")
            for path in one.get("removed", ()):
                print(f"{one['host']}: removed the copy of {path}")
        sys.stdout.flush()
