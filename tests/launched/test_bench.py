"""The benchmark measures what it says, and finds wrong results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner.tools.bench.bench import NAMES
from tests.launching import RUNNER, mpirun_path, ok, runner, warnings_of
from tests.results import refused
from tests.terminal import on_terminal
from tests.turns import Turns


@pytest.mark.needs("mpi4py")
def test_all_operations_by_all_backends(tmp_path: Path) -> None:
    options = ["--min", "4K", "--max", "64K", "--factor", "16", "--rounds", "1"]
    files = ["--json", str(tmp_path / "times.jsonl"), "--plot", str(tmp_path / "times.svg")]
    done = ok(runner(2, "bench", *NAMES, "--backend", "gloo,mpi4py", *options, *files))
    assert not warnings_of(done)
    found = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    wanted = {(name, backend, size) for name in NAMES for backend in ("gloo", "mpi4py") for size in (4096, 65536)}
    assert {(m["operation"], m["backend"], m["size"]) for m in found} == wanted
    halved = ("allgather", "reduce_scatter", "alltoall")
    for m in found:
        assert m["wrong"] == 0
        assert m["fastest"] <= m["seconds"] <= m["slowest"]
        assert m["fastest"] <= m["mean"] * (1 + 1e-9)
        assert m["mean"] <= m["slowest"] * (1 + 1e-9)
        assert m["bus_bandwidth"] == pytest.approx(
            m["size"] / m["seconds"] * (0.5 if m["operation"] in halved else 1.0)
        )
    # matplotlib draws letters as paths, and says in a comment which text they are.
    texts = set(re.findall(r"<!-- (.*?) -->", (tmp_path / "times.svg").read_text()))
    assert {"4 KiB", "64 KiB", "allreduce, 2 ranks", "median; band: all rounds"} <= texts
    assert done.stdout.splitlines()[-2:] == [f"wrote {path}" for path in files[1::2]]
    assert re.search(r"size +count +backend +time +mean +fastest to +algbw +busbw +gloo +#wrong", done.stdout)


@pytest.mark.needs("mpi4py")
def test_a_narrow_terminal_gets_fewer_columns() -> None:
    options = ["--backend", "gloo,mpi4py", "--min", "16M", "--rounds", "1"]
    seen = on_terminal(72, mpirun_path(), "-np", "2", *RUNNER, "bench", *options)
    assert max(map(len, seen)) <= 72
    rows = [line.split() for line in seen if line.strip().startswith("16777216")]
    assert [row[1] for row in rows] == ["gloo", "mpi4py"]
    assert [row[-1] for row in rows] == ["0", "0"]  # wrong elements
    assert seen[-2].startswith("no room for: count, ")


def test_a_wrong_result_is_counted() -> None:
    import torch
    import torch.distributed as dist

    from runner.tools.bench.bench import count_wrong
    from runner.tools.bench.operations import OPERATIONS, buffers

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        data = buffers(64, 0, 1, torch.device("cpu"))
        assert count_wrong(OPERATIONS["allreduce"], lambda: None, data) == 0  # of one rank, the sum is its own
        assert count_wrong(OPERATIONS["allreduce"], data.whole[:3].zero_, data) == 3
    finally:
        dist.destroy_process_group()


def test_what_cannot_be_measured_is_refused(turns: Turns) -> None:
    for arguments, text in (
        (["--backend", "mpi"], "no backend 'mpi'; there are gloo, mpi4py, horovod, nccl, xccl"),
        (["--json", "/nowhere/x.jsonl"], "--json: cannot write in /nowhere"),
        (["--plot", "x.txt"], "--plot x.txt: the name ends in .png, .svg, .pdf; for example x.png"),
        (["--min", "3x"], "'3x'"),
        (["--min", "2K", "--max", "1K"], "--min at most --max"),
        (["fly"], "no operation 'fly'"),
        (["sendrecv"], "sendrecv takes two ranks"),
    ):
        refused(turns(1, "bench", *arguments), text)
