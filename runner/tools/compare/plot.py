"""Samples per second of each engine as bars, and below them who computes what when in each pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.tools.compare.comparison import Comparison
from runner.tools.costs.timeline import KINDS, Timeline
from runner.tools.report.output import new_figure

# Of forward passes, whole backward passes, and backward passes in two parts. Later stages of a rank are paler.
_COLORS = {"forward": "#4c8ed9", "backward": "#4fae5b", "inputs": "#39b5a6", "weights": "#f0a13c"}
_PALER = 0.55
_IDLE = "#e9e9e9"
_BARS, _ROW, _AROUND = 4.5, 0.42, 1.05  # inches: the bars' height, a rank's, and a timeline's without its ranks
_NARROWEST = 0.011  # of the step's time: a box that has room for its number


def plot(title: str, engines: Sequence[Comparison], alone: Comparison, path: str) -> None:
    """Draw a bar per engine, with the spread of its steps and its hidden share, and a line for ``alone``; then timelines."""
    pipelines = [(c, c.timeline) for c in engines if c.timeline is not None]
    heights = [_BARS, *(_AROUND + _ROW * len(timeline.stages) for _, timeline in pipelines)]
    each = max(1.3, 0.1 * max(len(line) for c in engines for line in _in_lines(c.engine).splitlines()))
    width = max(5.0, 1.5 + each * len(engines), 10.0 if pipelines else 0.0)
    figure, axes = new_figure(len(heights), 1, inches=(width, sum(heights)), heights=heights)
    _draw_bars(axes[0][0], engines, alone)
    axes[0][0].set(title=title)
    longest = max((timeline.seconds for _, timeline in pipelines), default=0.0)
    for (engine, timeline), (axis,) in zip(pipelines, axes[1:], strict=True):
        _draw_timeline(axis, timeline, longest)
        axis.set_title(f"{engine.engine}: a step, {timeline.idle:.0%} idle", loc="left", fontsize="medium")
    if pipelines:
        is_paler = any(len(stages) > 1 for _, timeline in pipelines for stages in timeline.stages.values())
        remark = "; paler: a rank's later stage" if is_paler else ""
        axes[-1][0].set_xlabel(f"ms since the first pass began{remark}")
        boxes = _boxes({one.kind for _, timeline in pipelines for one in timeline.passes})
        figure.legend(handles=boxes, loc="outside lower center", ncols=len(boxes), frameon=False)
    figure.savefig(path)


def _draw_bars(axis: Any, engines: Sequence[Comparison], alone: Comparison) -> None:
    names = [
        _in_lines(c.engine) if c.hidden is None else f"{_in_lines(c.engine)}\n{c.hidden:.0%} hidden" for c in engines
    ]
    # A slow step is a low speed, so the percentiles swap.
    low = [c.samples_per_s * (1 - c.step / c.step_high) for c in engines]
    high = [c.samples_per_s * (c.step / c.step_low - 1) for c in engines]
    heights = [c.samples_per_s for c in engines]
    axis.bar(
        names, heights, yerr=[low, high], capsize=5, color="tab:blue", alpha=0.8, label="median step; 10 % to 90 %"
    )
    axis.axhline(alone.samples_per_s, color="gray", linestyle="--", linewidth=1, label="nothing exchanged")
    axis.set(ylabel="samples/s")
    tops = [height + more for height, more in zip(heights, high, strict=True)]
    axis.set_ylim(0, 1.2 * max(*tops, alone.samples_per_s))  # the legend is above the bars
    axis.legend(loc="upper right", ncols=2, frameon=False)


def _draw_timeline(axis: Any, timeline: Timeline, longest: float) -> None:
    """Draw a row per rank, with a box per pass that has the micro-batch's number, on the same scale for all timelines."""
    rows = {rank: row for row, rank in enumerate(timeline.stages)}
    axis.barh(list(rows.values()), [1e3 * timeline.seconds] * len(rows), height=0.86, color=_IDLE)
    for one in timeline.passes:
        stages = timeline.stages[one.rank]
        alpha = _PALER ** stages.index(one.stage)
        left, width = 1e3 * one.start, 1e3 * (one.end - one.start)
        box = {"height": 0.86, "color": _COLORS[one.kind], "alpha": alpha, "edgecolor": "white", "linewidth": 0.5}
        axis.barh(rows[one.rank], width, left=left, **box)
        if one.end - one.start > _NARROWEST * longest:
            where = (left + width / 2, rows[one.rank])
            axis.annotate(str(one.micro_batch), where, ha="center", va="center", fontsize=7)
    axis.set_yticks(list(rows.values()), [_row_title(rank, stages) for rank, stages in timeline.stages.items()])
    axis.set_xlim(0, 1e3 * longest)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _boxes(kinds: set[str]) -> list[Any]:
    """The boxes of a legend."""
    from matplotlib.patches import Patch

    boxes = [Patch(color=_COLORS[kind], label=text) for kind, text in KINDS.items() if kind in kinds]
    return [*boxes, Patch(color=_IDLE, label="idle")]


def _row_title(rank: int, stages: Sequence[int]) -> str:
    return f"rank {rank}, stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"


def _in_lines(name: str) -> str:
    """A long engine's name, for below its bar."""
    return name if len(name) < 16 else name.replace("+", "\n+").replace(":", "\n:")
