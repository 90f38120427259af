"""How fast links are, from files of ``bench --json``; and what share of an exchange is hidden, from one of ``compare --json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.base.errors import UsageError
from runner.tools.costs.collectives import all_reduce, reduce_scatter
from runner.tools.costs.exchanges import Link, steps

_PREFERRED = ("nccl", "xccl", "mpi4py", "gloo")  # as a run prefers them; "mpi" is no backend of a run


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A line of ``bench --json``: seconds of a collective of so many bytes."""

    operation: str
    backend: str
    size: int
    ranks: int
    hosts: int
    seconds: float

    @property
    def sent(self) -> float:
        """Bytes that a rank sends; sizes are those of the larger buffer, as nccl-tests has them."""
        if self.operation == "allreduce":
            return all_reduce(self.size, self.ranks)
        return float(self.size) if self.operation == "sendrecv" else reduce_scatter(self.size, self.ranks)

    @property
    def steps(self) -> tuple[int, int]:
        return steps(self.operation, self.ranks, self.hosts)


@dataclass(frozen=True, kw_only=True)
class MeasuredLinks:
    """By collective, as fitted. ``between`` has the bandwidth of a whole host.

    Attributes:
        deviations: relative, the most by which a time that was measured is off the fit: by collective, and whether between hosts.
    """

    backend: str
    inside: Mapping[str, Link]
    between: Mapping[str, Link]
    deviations: Mapping[tuple[str, bool], float]


def read_bench(paths: Sequence[Path]) -> list[Timed]:
    """The lines of all files.

    Raises:
        UsageError: one is not what bench writes.
    """
    found = []
    for path in paths:
        names = ("operation", "backend", "size", "ranks", "hosts", "seconds")
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            found += [Timed(**{name: line[name] for name in names}) for line in lines]
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", fix="name what bench --json has written") from None
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"{path} has no times of collectives", fix="name what bench --json of this version has written"
            ) from None
        if not lines:
            raise UsageError(f"{path} is empty", fix="name what bench --json has written")
    return [one for one in found if one.ranks > 1]  # one rank exchanges nothing


def fitted(times: Sequence[Timed], backend: str | None) -> MeasuredLinks:
    """Latency and bandwidth of each collective, inside a host and between hosts.

    Args:
        backend: whose times count; None: that which a run would prefer.

    Raises:
        UsageError: it has none.
    """
    have = list(dict.fromkeys(one.backend for one in times))
    chosen = backend or next((name for name in (*_PREFERRED, *have) if name in have), None)
    if chosen not in have:
        raise UsageError(
            f"no times of {chosen or 'several ranks'} were measured" + (f", but of {', '.join(have)}" if have else ""),
            fix="take another --backend" if have else "run bench on several ranks",
        )
    own = [one for one in times if one.backend == chosen]
    inside: dict[str, Link] = {}
    between: dict[str, Link] = {}
    deviations: dict[tuple[str, bool], float] = {}
    for name in dict.fromkeys(one.operation for one in own):
        here = [one for one in own if one.operation == name and one.hosts == 1]
        across = [one for one in own if one.operation == name and one.hosts > 1]
        if here:
            inside[name], deviations[name, False] = _fit(here, [one.steps[0] for one in here], [0.0] * len(here))
        if across:
            known = inside.get(name)
            counts = [one.steps[1] + (0 if known else one.steps[0]) for one in across]
            before = [one.steps[0] * known.latency if known else 0.0 for one in across]
            between[name], deviations[name, True] = _fit(across, counts, before)
    return MeasuredLinks(backend=chosen, inside=inside, between=between, deviations=deviations)


def _fit(times: Sequence[Timed], counts: Sequence[int], before: Sequence[float]) -> tuple[Link, float]:
    """Least squares of relative deviations: seconds = before + count · latency + sent ÷ bandwidth, neither of them negative."""
    seconds = np.array([one.seconds for one in times])
    columns = np.array([counts, [one.sent for one in times]], dtype=float).T
    rows, wanted = columns / seconds[:, None], (seconds - np.array(before)) / seconds
    best, least = np.zeros(2), math.inf
    for kept in ([0, 1], [1], [0]):
        scale = np.maximum(np.abs(rows[:, kept]).max(axis=0), 1e-300)  # bytes are many, and steps few
        solved = np.linalg.lstsq(rows[:, kept] / scale, wanted, rcond=None)[0] / scale
        left = float(np.sum((rows[:, kept] @ solved - wanted) ** 2))
        if (solved >= 0).all() and left < least * (1 - 1e-9):
            best, least = np.zeros(2), left
            best[kept] = solved
    latency, per_byte = (float(one) for one in best)
    link = Link(latency=latency, bandwidth=1 / per_byte if per_byte else math.inf)
    return link, float(np.abs(rows @ best - wanted).max())


def read_hidden(path: Path, strategy: str, backend: str | None) -> tuple[float, str]:
    """The share of the exchange that an engine of this strategy hides, and the engine's name.

    Below 0 where the exchange adds more to a step than it takes alone, as on CPUs, whose cores and memory it uses.

    Raises:
        UsageError: the file is not what compare writes, or has no such engine.
    """
    try:
        engines: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["engines"]
        known = {one["engine"]: 1 - one["communication"] / one["exchange"] for one in engines if one["exchange"]}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", fix="name what compare --json has written") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no comparison", fix="name what compare --json has written") from None
    own = [name for name in known if strategy in name.partition(":")[0].split("+")]
    if not own:
        raise UsageError(
            f"{path} has no engine of {strategy} with a hidden share" + (f", but {', '.join(known)}" if known else ""),
            fix=f"run compare with --engines {strategy}, or give --hidden-share",
        )
    chosen = next((name for name in own if backend is not None and name.endswith(f":{backend}")), own[0])
    return float(min(1.0, known[chosen])), chosen
