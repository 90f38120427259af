"""The benchmark measures what it says, and finds wrong results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner.tools.bench.bench import NAMES
from tests.launching import RUNNER, mpirun_path, ok, own_lines, run, runner
from tests.terminal import on_terminal


def test_all_operations_by_all_backends(tmp_path: Path) -> None:
    options = ["--min", "4K", "--max", "64K", "--factor", "16", "--rounds", "1"]
    files = ["--json", str(tmp_path / "times.jsonl"), "--plot", str(tmp_path / "times.svg")]
    done = ok(runner(2, "bench", *NAMES, "--backend", "gloo,mpi4py,mpi", "--overlap", *options, *files))
    assert done.stderr == ""
    found = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    wanted = {
        (name, backend, size) for name in NAMES for backend in ("gloo", "mpi4py", "mpi") for size in (4096, 65536)
    }
    assert {(m["operation"], m["backend"], m["size"]) for m in found} == wanted
    factors = {
        "allreduce": 1.0,
        "allgather": 0.5,
        "reduce_scatter": 0.5,
        "alltoall": 0.5,
        "broadcast": 1.0,
        "sendrecv": 1.0,
    }
    for m in found:
        assert m["wrong"] == 0
        assert m["overlap"] is None if m["backend"] == "mpi" else 0 <= m["overlap"] <= 1
        assert m["fastest"] <= m["seconds"] <= m["slowest"]
        assert m["bus_bandwidth"] == pytest.approx(m["size"] / m["seconds"] * factors[m["operation"]])
    # matplotlib draws letters as paths, and says in a comment which text they are.
    texts = set(re.findall(r"<!-- (.*?) -->", (tmp_path / "times.svg").read_text()))
    assert {"4 KiB", "64 KiB", "allreduce, 2 ranks", "median; band: all rounds", "a backward pass (%)"} <= texts
    assert done.stdout.splitlines()[-2:] == [f"wrote {path}" for path in files[1::2]]
    assert re.search(r"size +count +backend +time +fastest to +algbw +busbw +gloo +#wrong +overlap", done.stdout)


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    options = ["--backend", "gloo,mpi4py", "--min", "16M", "--rounds", "1", "--overlap"]
    seen = on_terminal(72, mpirun_path(), "-np", "2", *RUNNER, "bench", *options)
    assert max(map(len, seen)) <= 72
    rows = [line.split() for line in seen if line.strip().startswith("16777216")]
    assert [row[1] for row in rows] == ["gloo", "mpi4py"]
    assert all(row[-1].endswith("%") for row in rows)
    assert seen[-2].startswith("no room for: count, ")


def test_a_wrong_result_is_counted() -> None:
    import torch
    import torch.distributed as dist

    from runner.tools.bench.bench import _wrong
    from runner.tools.bench.operations import OPERATIONS, buffers

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        data = buffers(64, 0, 1, torch.device("cpu"))
        assert _wrong(OPERATIONS["allreduce"], lambda: None, data) == 0  # of one rank, the sum is its own
        assert _wrong(OPERATIONS["allreduce"], data.whole[:3].zero_, data) == 3
    finally:
        dist.destroy_process_group()


def test_what_cannot_be_measured_is_refused() -> None:
    for arguments, text in (
        (["--backend", "nccl"], "--backend nccl: no GPU is used"),
        (["--backend", "mpi"], "--backend mpi: the ranks did not meet by MPI"),
        (["--backend", "smoke-signals"], "no backend 'smoke-signals'; there are gloo, mpi4py, horovod, nccl, mpi"),
        (["--json", "/nowhere/x.jsonl"], "--json: cannot write in /nowhere"),
        (["--plot", "x.txt"], "--plot x.txt: the name ends in .png, .svg, .pdf; for example x.png"),
        (["--min", "3x"], "'3x' is no size"),
        (["--min", "2K", "--max", "1K"], "--min at most --max"),
        (["fly"], "no operation 'fly'"),
        (["sendrecv"], "sendrecv takes two ranks"),
    ):
        done = run(*RUNNER, "bench", *arguments)
        assert done.returncode == 2
        assert text in own_lines(done)[0]
