"""How long a step takes on other numbers of ranks: the model, what is fitted to measured links, and what is said of bad files."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.parallel.mesh import lay_out
from runner.parallel.settings import ParallelSettings
from runner.tools.costs.exchanges import Exchange, Group, Link, Links, steps
from runner.tools.costs.study import STRONG, WEAK, Size, Study
from runner.tools.plan.by_curve import by_curve
from runner.tools.plan.by_links import ByLinks
from runner.tools.plan.layouts import Candidate, Cluster
from runner.tools.plan.measured_links import Timed, fitted, read_bench, read_hidden
from runner.tools.plan.memory import Memory
from runner.tools.plan.planning import Planned
from runner.tools.plan.predicted import UNCHECKED, cluster_of, grown
from runner.tools.plan.predicted_report import as_json, print_outlook
from runner.tools.plan.prediction import Expected, Facts, about, computing_of, predict
from runner.tools.plan.traffic import Traffic, replicated

NAMES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "sendrecv")
EXACT = Expected(1.0, 1.0, 1.0)
latencies, bandwidths = st.floats(1e-7, 1e-3), st.floats(1e6, 1e12)
links = st.builds(Link, latency=latencies, bandwidth=bandwidths)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    hosts, each = draw(st.integers(1, 64)), draw(st.integers(1, 8))
    return Group(ranks=hosts * each, hosts=hosts, links=each if hosts > 1 else 0)


exchanges = st.builds(
    Exchange,
    purpose=st.sampled_from(["ddp", "fsdp", "tp", "pp"]),
    collective=st.sampled_from(NAMES),
    sent=st.floats(1, 1e11),
    calls=st.floats(1, 1e4),
    group=groups(),
)
shares = st.floats(-1, 1)  # below 0: an exchange adds more to a step than it takes alone


def everywhere(inside: Link, between: Link) -> Links:
    return Links(inside=dict.fromkeys(NAMES, inside), between=dict.fromkeys(NAMES, between))


def facts(
    computing: float, sent: list[Exchange], inside: Link, between: Link, hidden: float = 0.0, idle: float = 0.0
) -> Facts:
    return Facts(
        computing=about(computing, 0.0),
        idle=idle,
        exchanges=sent,
        links=everywhere(inside, between),
        slower=EXACT,
        hidden=Expected(hidden, hidden, hidden),
    )


@given(st.floats(1e-4, 10), st.lists(exchanges, max_size=4), links, links, shares, st.floats(0, 0.9), st.floats(1, 100))
def test_faster_links_and_more_that_is_hidden_never_make_a_step_longer(
    computing: float, sent: list[Exchange], inside: Link, between: Link, hidden: float, idle: float, times: float
) -> None:
    own = facts(computing, sent, inside, between, hidden, idle)
    seconds = predict(own).seconds * (1 + 1e-9)
    for better in (
        everywhere(replace(inside, bandwidth=times * inside.bandwidth), between),
        everywhere(inside, replace(between, bandwidth=times * between.bandwidth)),
        everywhere(replace(inside, latency=inside.latency / times), between),
        everywhere(inside, replace(between, latency=between.latency / times)),
    ):
        assert predict(replace(own, links=better)).seconds <= seconds
    assert predict(replace(own, hidden=about(min(1.0, hidden + times / 100), 0.0))).seconds <= seconds


@given(st.floats(1e-4, 10), st.lists(exchanges, max_size=4), links, links, shares, st.floats(0, 0.9))
def test_the_parts_of_a_step_add_up_and_it_is_in_its_interval(
    computing: float, sent: list[Exchange], inside: Link, between: Link, hidden: float, idle: float
) -> None:
    own = facts(computing, sent, inside, between, hidden, idle)
    found = predict(replace(own, slower=about(1.0, 0.5), hidden=Expected(-1.0, hidden, 1.0), error=0.1))
    assert found.computing + found.idle + found.within + found.between == pytest.approx(found.seconds)
    assert found.low <= found.seconds / 1.1 * (1 + 1e-9)
    assert found.high >= found.seconds * 1.1 * (1 - 1e-9)
    assert 0 < found.efficiency <= 1 + 1e-9


@given(st.floats(1e-4, 10), st.sampled_from(NAMES), links, links)
def test_one_rank_exchanges_nothing(computing: float, name: str, inside: Link, between: Link) -> None:
    alone = Exchange(purpose="ddp", collective=name, sent=0.0, calls=10, group=Group(ranks=1))
    found = predict(facts(computing, [alone], inside, between))
    assert (found.seconds, found.within, found.between) == (computing, 0.0, 0.0)


@given(st.floats(1e-4, 10), st.lists(exchanges, max_size=3), links, links, shares, st.floats(0, 0.5))
def test_computing_is_found_again_from_a_step(
    computing: float, sent: list[Exchange], inside: Link, between: Link, hidden: float, idle: float
) -> None:
    own = facts(computing, sent, inside, between, hidden, idle)
    seconds = predict(own).seconds
    assert computing_of(seconds, own).value == pytest.approx(computing, abs=1e-6 * seconds)


def test_a_hidden_share_is_not_longer_than_the_backward_pass() -> None:
    link = Link(latency=0.0, bandwidth=1.0)
    sent = Exchange(purpose="ddp", collective="allreduce", sent=9.0, calls=1, group=Group(ranks=2))
    assert predict(facts(3.0, [sent], link, link, hidden=1.0)).seconds == pytest.approx(3 + 9 - 2)
    assert predict(facts(3.0, [replace(sent, purpose="tp")], link, link, hidden=1.0)).seconds == pytest.approx(12)


def test_what_is_hidden_is_of_the_exchanges_that_may_be() -> None:
    link = Link(latency=0.0, bandwidth=1.0)
    layers = Exchange(purpose="tp", collective="allreduce", sent=2.0, calls=1, group=Group(ranks=2))
    gradients = Exchange(
        purpose="ddp", collective="allreduce", sent=4.0, calls=1, group=Group(ranks=2, hosts=2, links=1)
    )
    found = predict(facts(30.0, [layers, gradients], link, link, hidden=0.75))
    assert (found.within, found.between) == pytest.approx((2.0, 1.0))


@pytest.mark.parametrize(
    ("collective", "ranks", "hosts", "expected"),
    [
        ("allreduce", 8, 1, (6, 0)),  # Rabenseifner: 2 log2 n
        ("allreduce", 64, 8, (6, 6)),
        ("allgather", 8, 1, (7, 0)),
        ("reduce_scatter", 64, 8, (56, 7)),  # a ring over all of them crosses to another host seven times
        ("broadcast", 5, 1, (3, 0)),
        ("sendrecv", 2, 2, (0, 1)),
    ],
)
def test_the_steps_of_a_collective(collective: str, ranks: int, hosts: int, expected: tuple[int, int]) -> None:
    assert steps(collective, ranks, hosts) == expected


def timed(name: str, size: int, ranks: int, hosts: int, inside: Link, between: Link, backend: str = "gloo") -> Timed:
    """As it takes by the model. Between hosts a whole host has the bandwidth."""
    one = Timed(operation=name, backend=backend, size=size, ranks=ranks, hosts=hosts, seconds=0.0)
    counts = one.steps
    bandwidth = between.bandwidth if hosts > 1 else inside.bandwidth
    return replace(one, seconds=counts[0] * inside.latency + counts[1] * between.latency + one.sent / bandwidth)


@given(st.sampled_from(NAMES[:3]), links, links)
def test_known_costs_of_links_are_found_again(name: str, inside: Link, between: Link) -> None:
    sizes = [2**power for power in range(10, 31, 2)]
    times = [timed(name, size, 4, 1, inside, between) for size in sizes]
    times += [timed(name, size, 8, 2, inside, between) for size in sizes]
    found = fitted(times, None)
    assert max(found.deviations.values()) < 1e-3
    for own, there, ranks, hosts in ((found.inside[name], inside, 16, 1), (found.between[name], between, 32, 8)):
        for size in (2**12, 2**28):
            as_known = timed(name, size, ranks, hosts, inside, between)
            links = {"inside": found.inside[name], "between": found.between[name]}
            assert timed(name, size, ranks, hosts, **links).seconds == pytest.approx(as_known.seconds, rel=1e-2)
        assert own.bandwidth == pytest.approx(there.bandwidth, rel=0.5) or own.bandwidth == math.inf


def test_the_backend_of_a_run_counts_or_the_one_that_is_named() -> None:
    slow, fast = Link(latency=1e-3, bandwidth=1e6), Link(latency=1e-6, bandwidth=1e9)
    times = [timed("allreduce", 2**20, 2, 1, slow, slow, "gloo"), timed("allreduce", 2**20, 2, 1, fast, fast, "mpi4py")]
    assert fitted(times, None).backend == "mpi4py"
    assert fitted(times, "gloo").backend == "gloo"
    with pytest.raises(UsageError, match="no times of nccl were measured, but of gloo, mpi4py; take another --backend"):
        fitted(times, "nccl")


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_bench([tmp_path / "missing.jsonl"])
    with pytest.raises(UsageError, match="has no times of collectives; name what bench --json"):
        read_bench([written(tmp_path / "other.json", {"engines": []})])
    with pytest.raises(UsageError, match="is empty"):
        read_bench([written(tmp_path / "empty.json")])
    with pytest.raises(UsageError, match="is no comparison; name what compare --json"):
        read_hidden(written(tmp_path / "lines.json", [1]), "ddp", None)


def test_the_hidden_share_is_that_of_an_engine_of_the_strategy(tmp_path: Path) -> None:
    seconds = {"ddp:gloo": (15.0, 10.0), "ddp:mpi4py": (6.0, 10.0), "fsdp+tp2": (4.0, 10.0), "pp2": (1.0, 0.0)}
    engines = [{"engine": name, "communication": added, "exchange": alone} for name, (added, alone) in seconds.items()]
    file = written(tmp_path / "c.json", {"engines": engines})
    assert read_hidden(file, "ddp", None) == (-0.5, "ddp:gloo")  # it adds more than it takes alone
    assert read_hidden(file, "ddp", "mpi4py") == (0.4, "ddp:mpi4py")
    assert read_hidden(file, "fsdp", "mpi4py") == (0.6, "fsdp+tp2")
    with pytest.raises(UsageError, match=r"no engine of zero1 with a hidden share, but ddp:gloo, .*--engines zero1"):
        read_hidden(file, "zero1", None)


GRADIENTS = 1e8  # bytes


class StandIn:
    """A planner of a workload that exchanges its gradients by DDP."""

    unit, units_per_sample, is_strong = "samples", 1, False

    def planned(
        self, cluster: Cluster, wanted: Mapping[str, Any], batch: int | None, global_batch: int | None
    ) -> Planned:
        options = ParallelSettings(**wanted)
        degrees = options.degrees(cluster.gpus)
        each = batch if batch is not None else (global_batch or 32 * degrees.data) // degrees.data
        candidate = Candidate(options=options, layout=lay_out(cluster.topology(), degrees), batch=each)
        traffic = Traffic()
        group = cluster.group(candidate.layout, "data")
        traffic.add("ddp", replicated(GRADIENTS, degrees.data), group, "allreduce", 4)
        memory = Memory(parameters=0, gradients=0, optimizer=0, activations=0, gathered=0)
        return Planned(candidate=candidate, by_stage=(memory,), idle=0.0, traffic=traffic, operations=1e12 * each)


def asked(**more: Any) -> Namespace:
    names = ("study", "backend", "compare", "hidden_share", "gpu", "utilisation", "ranks_per_node", "gpus", "nodes")
    return Namespace(**{"ranks": [1, 8, 64], "bench": [], **dict.fromkeys(names), **more})


def by_links(study: Study | None = None, wanted: Mapping[str, Any] = {}, **more: Any) -> Any:
    planner: Any = StandIn()
    return ByLinks(asked(**more), wanted, planner, study).outlook()


def bench_file(path: Path, inside: Link, between: Link | None, name: str = "allreduce") -> str:
    places = [(4, 1)] + ([(8, 2)] if between else [])
    times = [
        vars(timed(name, 2**power, ranks, hosts, inside, between or inside))
        for power in range(10, 31, 4)
        for ranks, hosts in places
    ]
    written(path, *times)
    return str(path)


def step_of(ranks: int, computing: float, inside: Link, between: Link, hidden: float) -> float:
    """By hand: Rabenseifner's all-reduces of four buckets, on hosts with four ranks each, with an adapter per host."""
    hosts = max(1, ranks // 4)
    latency = 4 * (2 * math.log2(min(ranks, 4)) * inside.latency + 2 * math.log2(hosts) * between.latency)
    sent = 2 * (ranks - 1) / ranks * GRADIENTS
    bandwidth = inside.bandwidth if hosts == 1 else min(inside.bandwidth, between.bandwidth)
    return computing + (1 - hidden) * (latency + sent / bandwidth)


INSIDE, BETWEEN = Link(latency=1e-6, bandwidth=1e10), Link(latency=1e-5, bandwidth=2e9)


@pytest.mark.parametrize("scaling", [STRONG, WEAK])
def test_a_study_and_links_predict_the_steps_that_the_model_has(tmp_path: Path, scaling: str) -> None:
    bench = bench_file(tmp_path / "b.json", INSIDE, BETWEEN)

    def seconds(ranks: int) -> float:
        return step_of(ranks, 2.0 / (ranks if scaling == STRONG else 1), INSIDE, BETWEEN, 0.25)

    sizes = [
        Size(
            scaling=scaling,
            ranks=n,
            hosts=max(1, n // 4),
            batch=64 * (n if scaling == WEAK else 1),
            rounds=[seconds(n)],
        )
        for n in (1, 2, 8)
    ]
    found = by_links(Study(target="x", sizes=sizes), bench=[bench], hidden_share=0.25, ranks=[4, 16, 32])
    for step in found.steps:
        assert step.prediction.seconds == pytest.approx(seconds(step.ranks), rel=1e-3)
        assert (step.scaling, step.hosts) == (scaling, step.ranks // 4)
        assert step.samples == 64 * (step.ranks if scaling == WEAK else 1)
    assert found.steps[0].prediction.between == 0 < found.steps[1].prediction.between
    assert [(kind, ranks) for kind, ranks, _ in found.errors] == [(scaling, n) for n in (1, 2, 8)]
    assert max(abs(error) for *_, error in found.errors) < 1e-3


def test_an_error_of_a_size_that_was_left_out_is_in_the_interval(tmp_path: Path) -> None:
    bench = bench_file(tmp_path / "b.json", INSIDE, None)
    sizes = [
        Size(scaling=WEAK, ranks=n, hosts=1, batch=32 * n, rounds=[seconds]) for n, seconds in ((1, 1.0), (2, 1.5))
    ]
    found = by_links(Study(target="x", sizes=sizes), bench=[bench], hidden_share=0.0, ranks=[2, 4, 8])
    worst = max(abs(error) for *_, error in found.errors)
    assert worst == pytest.approx(0.5, rel=0.1)
    widths = [step.prediction.high / step.prediction.seconds for step in found.steps]
    assert widths == pytest.approx([1 + worst, 1 + worst, (1 + worst) ** 2], rel=1e-3)


def test_without_files_a_data_sheet_says_it_and_the_interval_is_wide() -> None:
    found = by_links(utilisation=0.5)
    alone = found.steps[0].prediction
    assert alone.seconds == alone.computing == pytest.approx(32e12 / (0.5 * 67e12))  # fp32
    for step in found.steps:
        assert step.prediction.low <= step.prediction.seconds / 1.9
        assert step.prediction.high >= step.prediction.seconds * 1.9
    assert "NVIDIA, H100 SXM" in found.assumptions[0]
    assert by_links(gpu="A100", utilisation=0.5).steps[0].prediction.seconds > alone.seconds


def test_a_collective_that_was_not_measured_is_named_and_a_data_sheet_may_stand_in_for_it(tmp_path: Path) -> None:
    bench = bench_file(tmp_path / "b.json", INSIDE, None)
    with pytest.raises(UsageError, match=r"no allreduce between hosts was measured, which ddp takes; add .*--gpu"):
        by_links(bench=[bench])
    assert by_links(bench=[bench], gpu="H100").steps[-1].prediction.between > 0
    other = bench_file(tmp_path / "o.json", INSIDE, BETWEEN, "allgather")
    with pytest.raises(UsageError, match="no allreduce inside a host"):
        by_links(bench=[other], ranks=[4])


def test_numbers_of_ranks_that_do_not_fit_are_rows_that_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = by_links(None, {"tp": 2}, ranks=[3, 8, 12], ranks_per_node=8)
    odd, fits, uneven = found.steps
    assert "tensor(2)" in odd.problem
    assert fits.prediction is not None
    assert uneven.problem == "12 ranks do not fill hosts of 8"
    print_outlook("x", found)
    printed = capsys.readouterr().out
    assert "12 ranks: 12 ranks do not fill hosts of 8" in printed
    assert [row.get("seconds") is None for row in as_json(found)["steps"]] == [True, False, True]


def curve(sizes: tuple[int, ...]) -> Study:
    return Study(
        target="x",
        sizes=[Size(scaling=STRONG, ranks=n, hosts=1, batch=64, rounds=[1 / n + (n > 1) * 0.01]) for n in sizes],
    )


def test_a_study_alone_predicts_by_its_curve() -> None:
    def check(ranks: int) -> None:
        if ranks == 64:
            raise UsageError("too many")

    found = by_curve(asked(study="s.json"), curve((1, 2, 4, 8)), check)
    assert [step.prediction and step.prediction.seconds for step in found.steps] == [
        pytest.approx(1.0),
        pytest.approx(1 / 8 + 0.01),
        None,
    ]
    assert found.steps[2].problem == "too many"
    assert [ranks for _, ranks, _ in found.errors] == [1, 2, 4, 8]
    few = by_curve(asked(study="s.json"), curve((1, 2)), lambda _: None).steps[1].prediction
    assert few is not None
    assert few.high == pytest.approx(few.seconds * (1 + UNCHECKED) ** 2)
    with pytest.raises(
        UsageError, match="fewer than two sizes that were measured; measure another one, or give --bench"
    ):
        by_curve(asked(study="s.json"), curve((2,)), lambda _: None)


def test_an_error_grows_with_each_doubling_beyond_what_was_measured() -> None:
    assert [grown(0.1, ranks, 8) for ranks in (1, 16, 32)] == pytest.approx([0.1, 0.1, 0.21])


def test_ranks_fill_a_part_of_a_host_or_whole_hosts() -> None:
    assert [(one.gpus, one.hosts) for one in (cluster_of(4, 8), cluster_of(16, 8), cluster_of(12, None))] == [
        (4, 1),
        (16, 2),
        (12, 2),
    ]
