"""The section about hosts: their ranks, and what these use."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from runner.rendezvous.records.topology import ranks_text
from runner.tools.run_report.markup import NOT_KNOWN, absent, energy_text, figures, table
from runner.tools.run_report.over_time import Grid, Row, mean_over, sum_over
from runner.tools.run_report.pictures import Curve, chart
from runner.tools.run_report.shown import Shown, energy_of, points_of

_MOST_HOSTS = 6  # with a curve of their own
_USES: dict[str, Callable[[Grid, list[int]], Row]] = {
    "CPU: cores in use": lambda grid, ranks: sum_over(grid, ranks, "cpu", 100.0),
    "memory of the ranks, GiB": lambda grid, ranks: sum_over(grid, ranks, "memory", 2.0**30),
    "GPU: % of the time, mean": lambda grid, ranks: mean_over(grid, ranks, "gpu"),
    "memory of the GPUs, GiB": lambda grid, ranks: sum_over(grid, ranks, "gpu_memory", 2.0**30),
}


def hosts(shown: list[Shown]) -> str:
    """A table of the hosts, and what they use over time."""
    tables = "".join(one.heading() + _host_table(one) for one in shown if one.hosts)
    made = [
        chart(one.prefix + title, _curves_of(one, one.grid, use), x="time", over_time=True, from_zero=True)
        for one in shown
        if one.grid
        for title, use in _USES.items()
    ]
    return tables + figures(made) or absent("Nothing is known of the hosts: it is written with <code>--log-dir</code>.")


def _curves_of(one: Shown, grid: Grid, use: Callable[[Grid, list[int]], Row]) -> list[Curve]:
    """A curve per host; of many hosts the lowest, the median and the highest."""
    rows = {host: use(grid, ranks) for host, ranks in one.hosts.items()}
    if len(rows) > _MOST_HOSTS:
        columns = [[value for value in column if value is not None] for column in zip(*rows.values(), strict=True)]
        chosen: dict[str, Callable[[list[float]], float]] = {}
        chosen |= {"highest host": max, "median": statistics.median, "lowest host": min}
        rows = {name: [choose(column) if column else None for column in columns] for name, choose in chosen.items()}
    points = {name: points_of(grid, row) for name, row in rows.items()}
    return [Curve(label=name, points=points[name], colour=number) for number, name in enumerate(points)]


def _host_table(one: Shown) -> str:
    titles = "host, ranks, cores in use, memory at most, GPU, GPU memory at most, GPUs' energy, power"
    rows = [[host, ranks_text(ranks), *_use_texts(one, host, ranks)] for host, ranks in one.hosts.items()]
    return table(titles.split(", "), rows, numbers=range(2, 8))


def _use_texts(one: Shown, host: str, ranks: list[int]) -> list[str]:
    """Means, or the largest of the memory; energy and mean power, of the attempts in which its ranks were on this host."""
    rows = [use(one.grid, ranks) if one.grid else [] for use in _USES.values()]
    cores, memory, gpu, of_gpus = ([value for value in row if value is not None] for row in rows)
    own = {rank: [each for each in one.run.histories.get(rank, []) if each["host"] == host] for rank in ranks}
    used = energy_of(own)
    return [
        f"{statistics.fmean(cores):.1f}" if cores else NOT_KNOWN,
        f"{max(memory):.3g} GiB" if memory else NOT_KNOWN,
        f"{statistics.fmean(gpu):.0f} %" if gpu else NOT_KNOWN,
        f"{max(of_gpus):.3g} GiB" if of_gpus else NOT_KNOWN,
        NOT_KNOWN if used is None else energy_text(used[0]),
        NOT_KNOWN if used is None else f"{used[1]:.0f} W",
    ]
