"""A step's time on other numbers of ranks, by the layout's exchanges and the links they take.

Links are measured (``bench --json``) or a data sheet's. Computing is what the exchanges leave of a study's steps, or by a data sheet.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from runner.base.errors import UsageError
from runner.tools.costs.exchanges import Link, Links
from runner.tools.costs.study import STRONG, WEAK, Size, Study
from runner.tools.plan.layouts import Cluster
from runner.tools.plan.measured_links import fitted, read_bench, read_hidden
from runner.tools.plan.planner import Planner
from runner.tools.plan.planning import SHARE, Planned
from runner.tools.plan.predicted import UNCHECKED, Outlook, PredictedStep, cluster_of, grown, ranks_per_host
from runner.tools.plan.prediction import Expected, Facts, about, computing_of, predict
from runner.training.metrics.datasheets import SHEETS

_COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "sendrecv")
# Seconds per step of a ring over NVLink, and over a network: NCCL's src/graph/tuning.cc (2.18), protocol Simple. Data sheets have none.
_INSIDE, _BETWEEN = 3.4e-6, 14e-6
# What follows from a data sheet may take half or twice as long: torchtitan reports 58 % of an A100's peak, and 33 % of an H100's.
_BY_SHEET = 1.0
# Where it was not measured. At worst an exchange adds twice its time, as it slows computing: on two CPU hosts 1.6 times were measured.
_HIDDEN = Expected(-1.0, 0.5, 1.0)
_SUREST = 0.01  # relative uncertainty of a step's time, at least
_UNKNOWN = Expected(0.0, 0.0, 0.0)


class _Laid(NamedTuple):
    """A layout on its hosts."""

    cluster: Cluster
    planned: Planned


class ByLinks:
    """Predicts for one workload."""

    def __init__(self, given: Namespace, wanted: Mapping[str, Any], planner: Planner, study: Study | None) -> None:
        """``given``: plan's options; ``wanted``: the parallel options of the layout.

        Raises:
            UsageError: a file is not what it should be.
        """
        self._given, self._wanted, self._planner, self._study = given, wanted, planner, study
        times = read_bench([Path(path) for path in given.bench])
        self._measured = fitted(times, given.backend) if given.bench else None
        self._each = ranks_per_host(
            given, study, next((one.ranks // one.hosts for one in times if one.hosts > 1), None)
        )
        self._has_sheets_links = bool(given.gpu) or self._measured is None
        self._sheet_name = given.gpu or "H100"
        self._sheet = SHEETS[self._sheet_name]
        self._utilisation = given.utilisation or SHARE
        self._hidden, self._why_hidden = _hidden(given, {"strategy": "ddp", **wanted}["strategy"])

    def outlook(self) -> Outlook:
        """All rows.

        Raises:
            UsageError: how fast a collective is, or how much is computed, is not known.
        """
        found = Outlook(unit=self._planner.unit, units_per_sample=self._planner.units_per_sample)
        if self._study is None:
            scaling = STRONG if self._planner.is_strong else WEAK
            found.steps = [self._step(scaling, ranks, None, None, self._by_sheet) for ranks in self._given.ranks]
            found.assumptions.append(
                f"computing: {self._utilisation:.0%} of the peak of {self._sheet_name}, what is computed again counted, and an "
                f"optimizer at the bandwidth of its memory; half to twice as long (data sheets: {self._sheet.source})"
            )
        else:
            for scaling in (STRONG, WEAK):
                if self._study.measured(scaling):
                    self._add(found, self._study, scaling)
        found.assumptions += [*self._lines(), f"hidden behind computing: {self._why_hidden}"]
        found.assumptions.append(f"ranks on a host: {self._each or 'up to 8 (--ranks-per-node)'}")
        return found

    def _add(self, found: Outlook, study: Study, scaling: str) -> None:
        """The rows of one kind of scaling, by what the exchanges leave of the study's steps for computing."""
        batch, global_batch = self._batches(study, scaling)
        known = []
        for size in study.measured(scaling):
            facts = self._facts(self._laid(_measured_on(size), batch, global_batch), _UNKNOWN)
            known.append(_Known(size, facts, computing_of(size.seconds, facts)))
        whole = _whole(known)
        if not whole.value:
            raise UsageError(
                f"by these links the exchanges alone take longer than the steps of {self._given.study}",
                fix="measure both on the same machine",
            )
        errors = _errors(known)
        error = max((abs(one) for _, one in errors), default=UNCHECKED)
        spread = 1 + sum(one.uncertainty**-2 for one in known) ** -0.5

        def computing(laid: _Laid) -> Expected:
            low, value, high = (one / (laid.cluster.gpus if scaling == STRONG else 1) for one in whole)
            return Expected(low / spread, value, high * spread)

        largest = max(one.size.ranks for one in known)
        found.steps += [
            self._step(scaling, ranks, batch, global_batch, computing, grown(error, ranks, largest))
            for ranks in self._given.ranks
        ]
        found.errors += [(scaling, ranks, one) for ranks, one in errors]
        sizes = ", ".join(str(one.size.ranks) for one in known)
        kind = "the largest error" if errors else "an assumption, as two sizes check it"
        found.assumptions.append(
            f"computing, {scaling} scaling: {1e3 * whole.value:.4g} ms {'of one rank alone' if scaling == STRONG else 'per rank'}, what the "
            f"exchanges leave of the steps that {self._given.study} measured on {sizes} ranks, with its batch; interval: {error:.0%}, "
            f"{kind}, and as much again for each doubling of the largest"
        )

    def _batches(self, study: Study, scaling: str) -> tuple[int | None, int | None]:
        """The study's samples per data-parallel rank, or of all ranks; None: as the workload has them."""
        base = study.base(scaling)
        assert base is not None
        if scaling == STRONG or not base.batch:
            return None, base.batch or None
        return self._laid(_measured_on(base), None, base.batch).planned.candidate.batch, None

    def _step(
        self,
        scaling: str,
        ranks: int,
        batch: int | None,
        global_batch: int | None,
        computing: Callable[[_Laid], Expected],
        error: float = 0.0,
    ) -> PredictedStep:
        try:
            laid = self._laid(cluster_of(ranks, self._each), batch, global_batch)
        except UsageError as problem:
            return PredictedStep(scaling=scaling, ranks=ranks, problem=problem.message)
        candidate = laid.planned.candidate
        return PredictedStep(
            scaling=scaling,
            ranks=ranks,
            hosts=laid.cluster.hosts,
            layout=candidate.name,
            samples=candidate.batch * candidate.degrees.data,
            prediction=predict(self._facts(laid, computing(laid), error)),
        )

    def _laid(self, cluster: Cluster, batch: int | None, global_batch: int | None) -> _Laid:
        return _Laid(cluster, self._planner.planned(cluster, self._wanted, batch, global_batch))

    def _facts(self, laid: _Laid, computing: Expected, error: float = 0.0) -> Facts:
        exchanges, links = laid.planned.traffic.exchanges, self._links(laid.cluster)
        shares = [0.0]
        for one in exchanges:
            is_across = one.group.hosts > 1
            if one.collective not in (links.between if is_across else links.inside):
                raise UsageError(
                    f"{', '.join(self._given.bench)}: no {one.collective} {'between hosts' if is_across else 'inside a host'} was "
                    f"measured, which {one.purpose} takes",
                    fix=f"add the file of a bench {one.collective} --json there, or name the data sheet: --gpu H100",
                )
            measured = self._measured.deviations if self._measured is not None else {}
            shares.append(measured.get((one.collective, is_across), _BY_SHEET))
        return Facts(
            computing=computing,
            idle=laid.planned.idle,
            exchanges=exchanges,
            links=links,
            slower=about(1.0, max(shares)),
            hidden=self._hidden,
            error=error,
        )

    def _links(self, cluster: Cluster) -> Links:
        inside: dict[str, Link] = {}
        between: dict[str, Link] = {}
        if self._has_sheets_links:
            inside = dict.fromkeys(_COLLECTIVES, Link(latency=_INSIDE, bandwidth=self._sheet.inside))
            between = dict.fromkeys(_COLLECTIVES, Link(latency=_BETWEEN, bandwidth=self._sheet.between))
        if self._measured is not None:
            inside |= self._measured.inside
            for name, link in self._measured.between.items():  # of a whole host
                between[name] = replace(link, bandwidth=link.bandwidth / cluster.per_host)
        return Links(inside=inside, between=between)

    def _by_sheet(self, laid: _Laid) -> Expected:
        """Computing.

        Raises:
            UsageError: the operations are not known.
        """
        planned, memory = laid.planned, laid.planned.memory
        if planned.problem:
            raise UsageError(
                f"its operations are not known, as the model cannot be followed ({planned.problem})",
                fix="measure it, and give the --study",
            )
        touched = 2 * (memory.parameters + memory.optimizer) + memory.gradients  # by the optimizer: read, and written
        peak = self._sheet.peak(planned.candidate.options.precision)
        return about(planned.operations / (self._utilisation * peak) + touched / self._sheet.memory, _BY_SHEET)

    def _lines(self) -> list[str]:
        """Where the links come from."""
        lines, files = [], ", ".join(self._given.bench)
        if self._measured is not None:
            for where, links in (("inside a host", self._measured.inside), ("between hosts", self._measured.between)):
                if links:
                    lines.append(f"exchange {where}: {files}, {self._measured.backend}: {_described(links)}")
            lines.append(f"times of {files} are up to {max(self._measured.deviations.values()):.0%} off these")
        if self._has_sheets_links:
            lines.append(
                f"exchange{' of other kinds' if lines else ''}: {self._sheet.inside / 1e9:g} GB/s inside a host, and "
                f"{self._sheet.between / 1e9:g} GB/s per GPU between hosts (data sheets: {self._sheet.source}), {1e6 * _INSIDE:g} and "
                f"{1e6 * _BETWEEN:g} µs per step of a collective (NCCL's tuning.cc); half to twice as long"
            )
        return lines


def _described(links: Mapping[str, Link]) -> str:
    return ", ".join(
        f"{name} {1e6 * link.latency:.3g} µs per step and {link.bandwidth / 1e9:.3g} GB/s"
        for name, link in links.items()
    )


def _hidden(given: Namespace, strategy: str) -> tuple[Expected, str]:
    """The hidden share, and where it comes from."""
    if given.hidden_share is not None:
        share = given.hidden_share
        return Expected(share, share, share), f"{share:.0%} of {strategy}'s exchange (--hidden-share)"
    if given.compare:
        share, engine = read_hidden(Path(given.compare), strategy, given.backend)
        said = f"{share:.0%} of" if share >= 0 else f"nothing; a step takes longer by {1 - share:.0%} of"
        return Expected(share, share, share), f"{said} {strategy}'s exchange ({given.compare}: {engine})"
    return (
        _HIDDEN,
        f"{_HIDDEN.value:.0%} of {strategy}'s exchange, an assumption; the interval is from all of it to none, and computing as much slower",
    )


def _measured_on(size: Size) -> Cluster:
    """Where a size of a study was measured; hosts with unequally many ranks count as one."""
    hosts = max(1, size.hosts)
    return Cluster(gpus=size.ranks, hosts=hosts if size.ranks % hosts == 0 else 1)


class _Known(NamedTuple):
    """A size of a study, what is known of its step without computing, and the computing of a rank that this leaves."""

    size: Size
    facts: Facts
    computing: Expected

    @property
    def ranks_sharing(self) -> int:
        """By how many ranks the work is divided that one rank alone would have."""
        return self.size.ranks if self.size.scaling == STRONG else 1

    @property
    def uncertainty(self) -> float:
        """Relative, of the step's time."""
        return max(_SUREST, self.size.uncertainty / self.size.seconds)


def _whole(known: Sequence[_Known]) -> Expected:
    """The computing of one rank alone: the mean of what the sizes show, each weighted by how sure it is."""
    weights = [one.uncertainty**-2 for one in known]
    each = ([one.ranks_sharing * value for value in one.computing] for one in known)
    whole = sum(weights)
    return Expected(
        *(
            sum(weight * one for weight, one in zip(weights, values, strict=True)) / whole
            for values in zip(*each, strict=True)
        )
    )


def _errors(known: Sequence[_Known]) -> list[tuple[int, float]]:
    """Relative, of each size's step, predicted by the computing that the other sizes show; nothing if there is one size."""
    found = []
    for one in known:
        others = [other for other in known if other is not one]
        if others:
            computing = about(_whole(others).value / one.ranks_sharing, 0.0)
            seconds = predict(replace(one.facts, computing=computing)).seconds
            found.append((one.size.ranks, seconds / one.size.seconds - 1))
    return found
