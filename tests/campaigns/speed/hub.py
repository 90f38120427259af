"""What the hub of the agents' link costs: connections, memory, processor time, and how soon all hosts know of a failure.

    python -m tests.campaigns.speed.hub [--hosts 10 100 1000 10000] [--ranks-per-host 8] [--seconds 10] [--write]

The hub is the runner's own, in a process of its own. The agents are sockets of a few other processes that speak its protocol: all
connect at once, each sends what the guards of its ranks would, and a sign of life every five seconds. All of them share this
machine's cores with the hub. ``--write``: into docs/results/hub.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from datetime import date
from multiprocessing.connection import Connection

from tests.campaigns.speed.simulated_hosts import be_agents, be_hub, open_files, process
from tests.pages import RESULTS, table

_HOSTS_PER_PROCESS = 5000

TITLES = (
    *("hosts", "ranks", "connections", "memory (MiB)", "all have joined", "all know of a failure", "all have left"),
    "of a core: signs of life",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--ranks-per-host", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10, help="of signs of life")
    parser.add_argument("--write", action="store_true", help="into docs/results/hub.md")
    given = parser.parse_args()
    if max(given.hosts) + 100 > open_files():
        parser.error(f"a process may open {open_files()} files here (ulimit -Hn), and the hub needs one per host")
    rows = []
    for hosts in given.hosts:
        rows.append(measure(hosts, given.ranks_per_host, given.seconds))
        print(
            "\n".join(f"{title:>25}  {cell}" for title, cell in zip(TITLES, rows[-1], strict=True)),
            end="\n\n",
            flush=True,
        )
    if given.write:
        (RESULTS / "hub.md").write_text(page(rows))


def measure(hosts: int, per_host: int, seconds: float) -> tuple[object, ...]:
    """A row of the table."""
    ranks, others = hosts * per_host, (hosts - 1) * per_host
    with ExitStack() as stack:
        hub = stack.enter_context(process(be_hub, ranks))
        port = hub.recv()
        parts = [range(first, min(first + _HOSTS_PER_PROCESS, hosts)) for first in range(1, hosts, _HOSTS_PER_PROCESS)]
        groups = [stack.enter_context(process(be_agents, port, part, per_host)) for part in parts]

        joined = _stage("join", hub, groups, [["join"]] * len(groups), ("until", "HostName", others))
        lives = _stage("signs of life", hub, groups, [["live", seconds]] * len(groups))
        memory = _asked(hub, "used")[1]
        knew = _stage("a failure", hub, groups, [["know", group is groups[0]] for group in groups])
        left = _stage("leave", hub, groups, [["leave"]] * len(groups), ("until", "Left", others))
    share = f"{100 * lives[1] / lives[0]:.1f} %"
    times = [f"{took:.2f} s ({processor:.2f})" for took, processor in (joined, knew, left)]
    return hosts, ranks, hosts - 1, f"{memory / 2**20:.0f}", *times, share


def _stage(
    name: str, hub: Connection, groups: list[Connection], commands: list[list[object]], until: tuple[object, ...] = ()
) -> tuple[float, float]:
    """(seconds until all groups and the hub are done, processor seconds of the hub)."""
    print(f"{name} …", file=sys.stderr, flush=True)
    before, _ = _asked(hub, "used")
    begin = time.monotonic()
    if until:
        hub.send(until)
    for group, command in zip(groups, commands, strict=True):
        group.send(command)
    ends = [group.recv() for group in groups]
    if until:
        ends = [hub.recv()]  # who has sent is not who has been heard
    after, _ = _asked(hub, "used")
    return max(ends) - begin, after - before


def _asked(hub: Connection, what: str) -> tuple[float, int]:
    hub.send((what,))
    processor, memory = hub.recv()
    return processor, memory


def page(rows: list[tuple[object, ...]]) -> str:
    """docs/results/hub.md."""
    written = (
        f"Written by `python -m tests.campaigns.speed.hub --write` on {date.today()}, on {len(os.sched_getaffinity(0))} cores (load "
        f"{os.getloadavg()[0]:.0f}), which the hub shares with the simulated agents and whatever else runs. In brackets: processor seconds of the hub."
    )
    return "\n".join(["# The hub of the agents' link", "", written, "", *table(TITLES, rows), ""])


if __name__ == "__main__":
    main()
