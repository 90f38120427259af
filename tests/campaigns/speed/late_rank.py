"""What a rank uses of the CPU while it waits for one that comes late to an allreduce, by gloo and by mpi4py.

    mpirun -np 2 python -m runner tests.campaigns.speed.late_rank [--late 3] [--json FILE]

The last rank is late. Seconds of CPU time are those of the process (all its threads), from the moment that the others
begin to wait; the late rank sleeps, so that what it uses is its call and what threads do while nothing is asked of them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runner.base.errors import UsageError
from runner.options.parsing import Parser
from runner.training.run import Run
from runner.training.settings import positive_float

BACKENDS = ("gloo", "mpi4py")
COUNT = 1024  # float32 elements: 4 KiB


def main(run: Run, argv: list[str]) -> None:
    parser = Parser(prog="python -m runner tests.campaigns.speed.late_rank", description=__doc__)
    parser.add_argument("--late", type=positive_float, default=3.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    if run.size == 1:
        raise UsageError("one rank waits for nobody; start with mpirun -np 2")
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found = {name: waited(run, group, given.late) for name, group in groups.items()}
    for name, one in found.items():
        run.print(
            f"{name:6} waited {one['wall']:.2f} s: the waiting rank used {one['waiting']:.2f} s of CPU time, the late one "
            f"{one['late']:.2f} s; the late one's call took {1e3 * one['call']:.1f} ms"
        )
    if run.is_main and given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


def waited(run: Run, group: Any, late: float) -> dict[str, float]:
    """Seconds: of wall time, of CPU time of the waiting rank that used most and of the late one, and of the latter's call."""
    is_late = run.rank == run.size - 1
    data = torch.ones(COUNT)
    dist.all_reduce(data, group=group)  # the first makes connections
    dist.barrier()
    start, used = time.perf_counter(), time.process_time()
    if is_late:
        time.sleep(late)
    called = time.perf_counter()
    dist.all_reduce(data, group=group)
    end, used = time.perf_counter(), time.process_time() - used
    own = [end - start, 0.0 if is_late else used, used if is_late else 0.0, end - called if is_late else 0.0]
    largest = torch.tensor(own, dtype=torch.float64, device=run.device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return dict(zip(("wall", "waiting", "late", "call"), largest.tolist(), strict=True))
