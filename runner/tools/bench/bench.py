"""``python -m runner bench``: time collectives by several backends, taken in turn, as nccl-tests does.

    mpirun -np 4 python -m runner bench
    mpirun -np 4 python -m runner bench allreduce allgather --min 8 --max 64M
    mpirun -np 4 python -m runner bench --json times.jsonl --plot times.png
    mpirun -np 4 python -m runner bench --backend gloo,mpi4py --overlap
    mpirun -np 4 python -m runner bench --backend gloo,mpi4py --load 2

Without arguments: allreduce by all that can be used, gloo, mpi4py and MPI itself among them. --overlap also measures
what hides behind products of matrices. --load shares the cores with busy loops, as other programs would; --awake keeps
idle cores from falling asleep, so that no message waits until one has woken.

Times are medians over rounds of the slowest rank, and the mean over all calls, which counts under load; "mpi" is the bare
mpi4py call, the floor for mpi4py. Every size is first done once and its result looked at: #wrong counts the elements that
are not what they must be.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.comm.choice import network_backend
from runner.comm.horovod import in_turn, start_horovod
from runner.comm.process_group import start_process_group
from runner.errors import UsageError
from runner.job import Job
from runner.options import Parser
from runner.tools.backends import why_unusable
from runner.tools.bench.busy import busy_loops, description
from runner.tools.bench.plot import plot
from runner.tools.output import check_output
from runner.tools.table import Column, print_columns

if TYPE_CHECKING:
    from runner.tools.bench.operations import Buffers, Operation

NAMES = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
BACKENDS = ("gloo", "mpi4py", "horovod", "nccl", "mpi")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ROUND = 0.05  # seconds that the calls of a round should take together
_FEWEST, _MOST = 3, 500  # calls in a round


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One operation of one size by one backend. Times in seconds per call, of the slowest rank."""

    operation: str
    backend: str
    size: int  # bytes
    ranks: int
    seconds: float  # median over rounds
    fastest: float
    slowest: float
    mean: float  # over all rounds
    algorithm_bandwidth: float  # bytes/s
    bus_bandwidth: float  # bytes/s
    wrong: int  # elements
    load: int = 0  # busy loops beside it, per host
    awake: bool = False  # whether the cores were kept from going idle
    overlap: float | None = (
        None  # the share of an asynchronous call that hides behind products of matrices, if asked for
    )


def bench(job: Job, argv: list[str]) -> None:
    """Measure, print a table, and write what was asked for.

    Raises:
        UsageError: a backend cannot be used here, or a file not be written.
    """
    options = _parser().parse_args(argv)
    backends = _usable(job, options.backend)
    if job.rank == 0:
        check_output(options.json, options.plot)
    found = []
    for measurement in _measure(job, options, backends):
        found.append(measurement)
        if job.rank == 0 and options.json:
            with Path(options.json).open("a" if len(found) > 1 else "w") as lines:
                lines.write(json.dumps(asdict(measurement)) + "\n")
    if job.rank == 0:
        _print(found, backends)
        if options.plot:
            plot(found, options.plot)
        for path in filter(None, (options.json, options.plot)):
            print(f"wrote {path}")


def _parser() -> Parser:
    from runner.training.options import not_negative

    parser = Parser(prog="python -m runner bench", description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"{', '.join(NAMES)} (default: allreduce)")
    parser.add_argument(
        "--backend",
        type=_backends,
        metavar="NAME,…",
        help=f"some of {', '.join(BACKENDS)} (default: all that can be used)",
    )
    parser.add_argument(
        "--min", type=_size, default=1024, metavar="BYTES", help="smallest size, e.g. 8 or 4K (default: 1K)"
    )
    parser.add_argument("--max", type=_size, default=16 << 20, metavar="BYTES", help="largest size (default: 16M)")
    parser.add_argument("--factor", type=int, default=4, help="from one size to the next (default: 4)")
    parser.add_argument("--rounds", type=int, default=7, help="that the backends take in turn (default: 7)")
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="also measure how much of an asynchronous call hides behind products of matrices that take about as long",
    )
    parser.add_argument(
        "--load", type=not_negative, default=0, metavar="N", help="run N busy loops beside it on each host (default: 0)"
    )
    parser.add_argument(
        "--awake", action="store_true", help="keep all cores awake by busy loops that give way to everything else"
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


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)i?B?", text.upper())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; for example 8, 4K, 256M")
    return int(match[1]) * _UNITS[match[2]]


def _usable(job: Job, wanted: list[str] | None) -> list[str]:
    """The backends asked for, or all that can be used.

    Raises:
        UsageError: one that was asked for cannot be used.
    """
    for name in wanted or ():
        if problem := why_unusable(job, name):
            raise UsageError(f"--backend {name}: {problem}", told_by_all=True)
    return wanted or [name for name in BACKENDS if not why_unusable(job, name)]


def _measure(job: Job, options: argparse.Namespace, backends: list[str]) -> Iterator[Measurement]:
    import torch
    import torch.distributed as dist

    from runner.tools.bench.operations import OPERATIONS, buffers
    from runner.tools.bench.overlap import overlap

    names = options.operations or ["allreduce"]
    unknown = [name for name in names if name not in NAMES]
    if "sendrecv" in names and job.size == 1:
        raise UsageError("sendrecv takes two ranks; start with mpirun -np 2", told_by_all=True)
    if "sendrecv" in names and backends == ["horovod"]:
        raise UsageError("Horovod has no sendrecv; take another operation, or another backend", told_by_all=True)
    if unknown or options.factor < 2 or options.rounds < 1 or options.min > options.max:
        problem = (
            f"no operation {unknown[0]!r}; there are {', '.join(NAMES)}"
            if unknown
            else ("--factor is at least 2, --rounds at least 1, --min at most --max")
        )
        raise UsageError(problem, told_by_all=True)
    start_process_group(replace(job, backend=network_backend(job)))
    groups = {name: dist.new_group(backend=name) for name in backends if name not in ("mpi", "horovod")}
    device = torch.device(job.placement.torch_device)
    with busy_loops(job, load=options.load, awake=options.awake):
        for name in names:
            operation = OPERATIONS[name]
            size = options.min
            while size <= options.max:
                data = buffers(max(1, size // 4), job.rank, job.size, device)
                with_it = [b for b in backends if b != "horovod" or operation.by_horovod]
                calls = {b: _call(operation, b, groups.get(b), data) for b in with_it}
                wrong = {}
                for backend, call in calls.items():
                    with _turn(backend):
                        wrong[backend] = _wrong(operation, call, data)
                rounds = _rounds(calls, options.rounds, device)
                for backend in with_it:
                    done = _measurement(job, name, operation, backend, data, rounds[backend], wrong[backend])
                    done = replace(done, load=options.load, awake=options.awake)
                    if options.overlap and backend != "mpi":
                        start = _start(operation, backend, groups.get(backend), data)
                        with _turn(backend):
                            done = replace(done, overlap=overlap(start, done.seconds, options.rounds, device))
                    yield done
                size *= options.factor


def _call(operation: Operation, backend: str, group: Any, data: Buffers) -> Callable[[], object]:
    if backend == "mpi":
        from mpi4py import MPI

        return operation.by_mpi(data, MPI.COMM_WORLD)
    if backend == "horovod":
        start = _start(operation, backend, group, data)

        def call() -> object:
            finish = start()
            return finish()

        return call
    return lambda: operation.by_torch(data, group, False)


def _start(operation: Operation, backend: str, group: Any, data: Buffers) -> Callable[[], Callable[[], object]]:
    """What starts it, and returns what waits for its end, and returns the result where that is not in a buffer."""
    by_horovod = operation.by_horovod
    if backend != "horovod" or by_horovod is None:
        return lambda: operation.by_torch(data, group, True).wait
    hvd = start_horovod(data.ranks, data.whole.device.type)

    def finish(handle: int) -> object:
        output = hvd.synchronize(handle)
        return output[0] if isinstance(output, tuple) else output  # an alltoall also says what came from whom

    return lambda: functools.partial(finish, by_horovod(data, hvd))


def _wrong(operation: Operation, call: Callable[[], object], data: Buffers) -> int:
    """How many elements, over all ranks, are not what they must be."""
    import torch
    import torch.distributed as dist

    data.fill()
    returned = call()
    result = returned if isinstance(returned, torch.Tensor) else operation.result(data)
    wrong = (result != operation.expected(data)).sum().reshape(1).to(torch.int64)
    dist.all_reduce(wrong)
    return int(wrong.item())


def _rounds(calls: dict[str, Callable[[], object]], rounds: int, device: Any) -> dict[str, list[float]]:
    """Seconds per call of the slowest rank, per round; the backends are taken in turn."""
    from runner.comm.timing import seconds_per_call

    # The slowest rank's time is the same on all ranks, and so is what follows from it.
    counts: dict[str, int] = {}
    found: dict[str, list[float]] = {backend: [] for backend in calls}
    for _ in range(rounds):
        for backend, call in calls.items():
            with _turn(backend):
                if backend == "horovod":
                    call()  # it starts anew in each turn, and its first call agrees on more than the others
                if backend not in counts:
                    counts[backend] = max(_FEWEST, min(_MOST, int(_ROUND / seconds_per_call(call, _FEWEST, device))))
                found[backend].append(seconds_per_call(call, counts[backend], device))
    return found


def _turn(backend: str) -> AbstractContextManager[None]:
    if backend != "horovod":
        return nullcontext()
    import horovod.torch as hvd

    return in_turn(hvd)


def _measurement(
    job: Job, name: str, operation: Operation, backend: str, data: Buffers, seconds: list[float], wrong: int
) -> Measurement:
    size = data.whole.numel() * data.whole.element_size()
    median = statistics.median(seconds)
    return Measurement(
        operation=name,
        backend=backend,
        size=size,
        ranks=job.size,
        seconds=median,
        fastest=min(seconds),
        slowest=max(seconds),
        mean=statistics.fmean(seconds),
        algorithm_bandwidth=size / median,
        bus_bandwidth=size / median * operation.bus(job.size),
        wrong=wrong,
    )


def _print(found: list[Measurement], backends: list[str]) -> None:
    first: dict[tuple[str, int], float] = {}
    for m in found:
        first.setdefault((m.operation, m.size), m.seconds)
    for name in dict.fromkeys(m.operation for m in found):
        rows = [m for m in found if m.operation == name]
        columns = [
            Column(title="size\n(B)", cells=[str(m.size) for m in rows]),
            Column(title="count\n", cells=[str(m.size // 4) for m in rows], spared=4),
            Column(title="backend\n", cells=[m.backend for m in rows], justify="left"),
            Column(title="time\n(µs)", cells=[f"{m.seconds * 1e6:.1f}" for m in rows]),
            Column(title="mean\n(µs)", cells=[f"{m.mean * 1e6:.1f}" for m in rows], spared=0 if rows[0].load else 5),
            Column(
                title="fastest to\nslowest (µs)",
                cells=[f"{m.fastest * 1e6:.1f} to {m.slowest * 1e6:.1f}" for m in rows],
                spared=1,
            ),
            Column(title="algbw\n(GB/s)", cells=[f"{m.algorithm_bandwidth / 1e9:.3f}" for m in rows], spared=3),
            Column(title="busbw\n(GB/s)", cells=[f"{m.bus_bandwidth / 1e9:.3f}" for m in rows]),
            Column(
                title=f"{backends[0]}\n÷", cells=[f"{first[(name, m.size)] / m.seconds:.2f}" for m in rows], spared=2
            ),
            Column(title="#wrong\n", cells=[str(m.wrong) for m in rows]),
        ]
        if any(m.overlap is not None for m in found):
            overlaps = ["" if m.overlap is None else f"{m.overlap:.0%}" for m in rows]
            columns.append(Column(title="overlap\n", cells=overlaps))
        with_loops = description(load=rows[0].load, awake=rows[0].awake)
        print_columns(", ".join(filter(None, [f"{name}, float32", with_loops])), columns)
        print()
