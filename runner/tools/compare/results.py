"""The results of compare, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.job import Job
from runner.tools.compare.choices import ALONE
from runner.tools.tables.plot import new_figure
from runner.tools.tables.table import Column, print_columns


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of an engine. Times in seconds, of the slowest rank; memory in bytes."""

    engine: str
    samples_per_s: float  # of all ranks, at the median step
    step: float  # median
    step_low: float  # 10th percentile
    step_high: float  # 90th percentile
    ratio: float  # first engine's step ÷ this one's, median over rounds: above 1 is faster
    communication: float  # step minus a step without any exchange
    memory: int  # rise of the peak while the engine is built and does its first steps
    loss: float  # of the last step, mean over ranks
    ranks_agree: bool  # whether the weights are bit-equal on all ranks
    distance: float  # relative, from the first engine's weights


def print_results(
    target: str, job: Job, samples: int, comparisons: list[Comparison], problems: Mapping[str, str]
) -> None:
    """Print a row per engine."""
    hosts = len(job.topology.hosts)
    ranks = f"{job.size} ranks on {hosts} host{'s' * (hosts > 1)}, {job.placement.device}"

    def column(title: str, text: Callable[[Comparison], str], spared: int = 0) -> Column:
        return Column(title=title, cells=[*(text(c) for c in comparisons), *("" for _ in problems)], spared=spared)

    def of_exchange(text: Callable[[Comparison], str]) -> Callable[[Comparison], str]:
        return lambda c: "" if c.engine == ALONE else text(c)

    print_columns(
        f"{target}, {ranks}, {samples} samples per step of each engine",
        [
            Column(title="engine\n", cells=[*(c.engine for c in comparisons), *problems], justify="left"),
            column("samples/s\n", lambda c: f"{c.samples_per_s:.1f}"),
            column("step\n(ms)", lambda c: f"{1e3 * c.step:.2f}"),
            column("10 % to\n90 % (ms)", lambda c: f"{1e3 * c.step_low:.2f} to {1e3 * c.step_high:.2f}", 2),
            column(f"vs\n{comparisons[0].engine}", lambda c: f"{c.ratio:.2f}"),
            column("in comm.\n(ms)", of_exchange(lambda c: f"{1e3 * c.communication:.2f}")),
            column("memory\n(MiB)", lambda c: f"{c.memory / 2**20:.0f}", 1),
            column("last loss\n", lambda c: f"{c.loss:.6f}", 3),
            Column(
                title="weights\n",
                cells=[*map(_agreement, comparisons), *("not trained" for _ in problems)],
                justify="left",
            ),
            column("off the\nfirst's", of_exchange(lambda c: f"{c.distance:.0e}" if c.distance else "0"), 4),
        ],
    )
    print(f"\n{ALONE}: every rank for itself, nothing is exchanged")
    for name, problem in problems.items():
        print(f"{name}: not trained: {problem}")


def _agreement(c: Comparison) -> str:
    if c.engine == ALONE:
        return ""
    return "ranks agree" if c.ranks_agree else "RANKS DIFFER"


def plot_results(title: str, engines: Sequence[Comparison], alone: Comparison, path: str) -> None:
    """Draw samples per second of each engine, with the spread of its steps, and a line for ``alone``."""
    names = [c.engine if len(c.engine) < 16 else c.engine.replace("+", "\n+").replace(":", "\n:") for c in engines]
    each = max(1.3, 0.1 * max(len(line) for name in names for line in name.splitlines()))
    figure, (axis,) = new_figure(1, inches=(max(5.0, 1.5 + each * len(engines)), 4.5))
    speeds = [c.samples_per_s for c in engines]
    # A slow step is a low speed, so the percentiles swap.
    low = [c.samples_per_s * (1 - c.step / c.step_high) for c in engines]
    high = [c.samples_per_s * (c.step / c.step_low - 1) for c in engines]
    axis.bar(names, speeds, yerr=[low, high], capsize=5, alpha=0.85, label="median step; 10 % to 90 %")
    axis.axhline(alone.samples_per_s, color="black", linestyle="--", linewidth=1, label="nothing exchanged")
    axis.set(title=title, ylabel="samples/s")
    axis.margins(y=0.2)  # the legend is above the bars
    axis.legend(loc="upper right", ncols=2, frameon=False)
    figure.savefig(path)
