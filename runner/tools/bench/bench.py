"""``python -m runner bench``: time collectives by several backends, taken in turn, as nccl-tests does.

    mpirun -np 4 python -m runner bench
    mpirun -np 4 python -m runner bench allreduce allgather --min 8 --max 64M
    mpirun -np 4 python -m runner bench --json times.jsonl --plot times.png
    mpirun -np 4 python -m runner bench --backend gloo,mpi4py

Without arguments it times allreduce by all usable backends, such as gloo and mpi4py.

Times are those of the slowest rank: the median over rounds, and the mean over all calls, which matters under load.
Each size runs once before it is timed, and its result is checked: #wrong counts wrong elements.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.backends.process_group import start_process_group
from runner.backends.registry import backends
from runner.backends.selection import network_backend
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.quantities import size
from runner.job import Job
from runner.options.parsing import Parser
from runner.tools.bench.results import Measurement, plot_results, print_results
from runner.tools.tables.output import check_output

if TYPE_CHECKING:
    from runner.backends.connection import Buffers, Connection, Operation
    from runner.tools.bench.operations import Measured

NAMES = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
BACKENDS = {backend.name: backend for backend in backends().values() if backend.is_measured}
_ROUND = 0.05  # target for all calls of a round, in seconds
_FEWEST, _MOST = 3, 500  # calls in a round


def bench(job: Job, argv: list[str]) -> None:
    """Measure, print a table, and write what was asked for.

    Raises:
        UsageError: a backend cannot be used here, or a file cannot be written.
    """
    options = _parser().parse_args(argv)
    usable = _usable(job, options.backend)
    if job.rank == 0:
        check_output(options.json, options.plot)
    found = []
    for measurement in _measure(job, options, usable):
        found.append(measurement)
        if job.rank == 0 and options.json:
            with Path(options.json).open("a" if len(found) > 1 else "w", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(measurement)) + "\n")
    if job.rank == 0:
        print_results(found, usable)
        if options.plot:
            plot_results(found, options.plot)
        for path in filter(None, (options.json, options.plot)):
            print(f"wrote {path}")


def _parser() -> Parser:
    parser = Parser(prog="python -m runner bench", description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"{', '.join(NAMES)} (default: allreduce)")
    parser.add_argument(
        "--backend",
        type=_backends,
        metavar="NAME,…",
        help=f"backends: some of {', '.join(BACKENDS)} (default: all that can be used)",
    )
    parser.add_argument(
        "--min", type=size, default=1024, metavar="BYTES", help="smallest size, e.g. 8 or 4K (default: 1K)"
    )
    parser.add_argument("--max", type=size, default=16 << 20, metavar="BYTES", help="largest size (default: 16M)")
    parser.add_argument("--factor", type=int, default=4, help="ratio of one size to the one before (default: 4)")
    parser.add_argument(
        "--rounds", type=int, default=7, help="measurements per size; the backends take turns (default: 7)"
    )
    parser.add_argument("--json", metavar="FILE", help="write one JSON object per line")
    parser.add_argument("--plot", metavar="FILE.png", help="draw bus bandwidth over size (needs matplotlib)")
    return parser


def _backends(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in BACKENDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no backend {unknown[0]!r}; there are {', '.join(BACKENDS)}")
    return list(dict.fromkeys(names))


@raised_on_all_ranks()
def _usable(job: Job, wanted: list[str] | None) -> list[str]:
    """The backends asked for, or all that can be used.

    Raises:
        UsageError: one that was asked for cannot be used.
    """
    for name in wanted or ():
        if problem := BACKENDS[name].unavailable_reason(job):
            raise UsageError(f"--backend {name}: {problem}")
    return wanted or [name for name, backend in BACKENDS.items() if not backend.unavailable_reason(job)]


def _measure(job: Job, options: argparse.Namespace, usable: list[str]) -> Iterator[Measurement]:
    import torch

    from runner.tools.bench.operations import OPERATIONS, buffers

    names = options.operations or ["allreduce"]
    _check(job, options, names)
    start_process_group(replace(job, backend=network_backend(job)))
    connections = {name: BACKENDS[name].start(job) for name in usable}
    device = torch.device(job.placement.torch_device)
    with raised_on_all_ranks():
        for name in names:
            if not _operations(name, connections, buffers(1, job.rank, job.size, device)):
                problem = f"{', '.join(usable)} has no {name}; take another operation, or another backend"
                raise UsageError(problem)
    for name in names:
        measured = OPERATIONS[name]
        size = options.min
        while size <= options.max:
            data = buffers(max(1, size // 4), job.rank, job.size, device)
            operations = _operations(name, connections, data)
            wrong = {}
            for backend, operation in operations.items():
                with connections[backend].turn():
                    wrong[backend] = count_wrong(measured, operation.call, data)
            rounds = _rounds(operations, connections, options.rounds, device)
            for backend in operations:
                yield _measurement(job, name, measured, backend, data, rounds[backend], wrong[backend])
            size *= options.factor


@raised_on_all_ranks()
def _check(job: Job, options: argparse.Namespace, names: list[str]) -> None:
    """Check operations and numbers.

    Raises:
        UsageError: an operation does not exist, or a number is out of range.
    """
    unknown = [name for name in names if name not in NAMES]
    if "sendrecv" in names and job.size == 1:
        raise UsageError("sendrecv takes two ranks", fix="start with mpirun -np 2")
    if unknown or options.factor < 2 or options.rounds < 1 or options.min > options.max:
        problem = (
            f"no operation {unknown[0]!r}; there are {', '.join(NAMES)}"
            if unknown
            else ("--factor is at least 2, --rounds at least 1, --min at most --max")
        )
        raise UsageError(problem)


def _operations(name: str, connections: dict[str, Connection], data: Buffers) -> dict[str, Operation]:
    """The operation of each backend that supports it."""
    found = {backend: connection.operation(name, data, "bench") for backend, connection in connections.items()}
    return {backend: operation for backend, operation in found.items() if operation is not None}


def count_wrong(measured: Measured, call: Callable[[], object], data: Buffers) -> int:
    """The number of wrong elements, over all ranks."""
    import torch
    import torch.distributed as dist

    from runner.tools.bench.operations import fill

    fill(data)
    returned = call()
    result = returned if isinstance(returned, torch.Tensor) else measured.result(data)
    wrong = (result != measured.expected(data)).sum().reshape(1).to(torch.int64)
    dist.all_reduce(wrong)
    return int(wrong.item())


def _rounds(
    operations: dict[str, Operation], connections: dict[str, Connection], rounds: int, device: Any
) -> dict[str, list[float]]:
    """Seconds per call of the slowest rank, per round; the backends take turns."""
    from runner.backends.timing import seconds_per_call

    # All ranks know the slowest rank's time, so they compute the same number of calls.
    counts: dict[str, int] = {}
    found: dict[str, list[float]] = {backend: [] for backend in operations}
    for _ in range(rounds):
        for backend, operation in operations.items():
            with connections[backend].turn():
                if connections[backend].starts_anew:
                    operation.call()
                if backend not in counts:
                    trial = seconds_per_call(operation.call, _FEWEST, device)
                    counts[backend] = max(_FEWEST, min(_MOST, int(_ROUND / trial)))
                found[backend].append(seconds_per_call(operation.call, counts[backend], device))
    return found


def _measurement(
    job: Job, name: str, measured: Measured, backend: str, data: Buffers, seconds: list[float], wrong: int
) -> Measurement:
    size = data.whole.numel() * data.whole.element_size()
    median = statistics.median(seconds)
    return Measurement(
        operation=name,
        backend=backend,
        size=size,
        ranks=job.size,
        hosts=len(job.topology.hosts),
        seconds=median,
        fastest=min(seconds),
        slowest=max(seconds),
        mean=statistics.fmean(seconds),
        algorithm_bandwidth=size / median,
        bus_bandwidth=size / median * measured.bus(job.size),
        wrong=wrong,
    )
