"""Whether the copies of a program have run alone: N times the same training, where one on N ranks was meant."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from runner.job import Job
from runner.torchrun.served_store import has_asked_for_ranks
from runner.torchrun.store import client_of

# By these libraries a program may reach its other ranks without torch.distributed.
_LIBRARIES = ("horovod", "deepspeed", "ray", "distributed", "jax", "tensorflow", "zmq", "grpc")
# What a program names that does so by itself, or that knows which share of the work is its own.
_WORDS = re.compile(
    r"RANK|WORLD_SIZE|PROCID|\b(mpi4py|socket|socketserver|xmlrpc|multiprocessing\.(connection|managers)|shared_memory|"
    r"spawn|start_processes|FileStore|HashStore)\b"
)
# What a program names that may yet make a process group.
_MAY_YET = re.compile(rf"init_process_group|\b(distributed|accelerate|lightning\w*|runner|{'|'.join(_LIBRARIES)})\b")
_MINUTE = 60.0  # seconds
_telling, _has_told = threading.Lock(), threading.Event()


def tell_if_alone_after_a_minute(job: Job, name: str, source: bytes) -> None:
    """Report copies of a program that run alone once it has run for a minute. Called when it starts."""

    def tell() -> None:
        with suppress(Exception):  # whatever the program does meanwhile
            tell_if_alone(job, name, source, is_running=True)

    if _may_be_alone(job):
        timer = threading.Timer(_MINUTE, tell)
        timer.daemon = True
        timer.start()


def tell_if_alone(job: Job, name: str, source: bytes, *, is_running: bool = False) -> None:
    """Report on rank 0, once, that the copies of a program run alone, or have.

    Args:
        name: of the program.
        source: of a program that is in no file.
        is_running: it may make a process group yet.
    """
    if not _may_be_alone(job):
        return
    with _telling:
        if _has_told.is_set() or not _is_alone(job, source, _MAY_YET if is_running else None):
            return
        _has_told.set()
        when, run = ("has not called", "run") if is_running else ("never called", "ran")
        print(
            f"runner: {name} {when} init_process_group(){' in its first minute' if is_running else ''}, so {job.size} independent copies "
            f"{run}. To train together, call it and wrap the model in DistributedDataParallel. For a sweep this is fine.",
            file=sys.stderr,
            flush=True,
        )


def _may_be_alone(job: Job) -> bool:
    is_rank_0 = job.rank == 0 and os.getpid() == job.board.process
    return is_rank_0 and job.size > 1 and not job.context.launcher.has_store


def _is_alone(job: Job, source: bytes, may_yet: re.Pattern[str] | None) -> bool:
    """Whether a program that has imported torch has made no process group and used nothing in its place. In doubt it has."""
    if "torch" not in sys.modules:
        return False
    if has_asked_for_ranks.is_set() or any(name in sys.modules for name in _LIBRARIES):
        return False
    import torch.distributed as dist

    texts = source.decode(errors="replace"), *_own_sources()
    names_another_way = any(_WORDS.search(text) or (may_yet and may_yet.search(text)) for text in texts)
    has_group = dist.is_available() and dist.is_initialized()
    return not (has_group or _uses_mpi() or names_another_way or _has_keys(job))


def _uses_mpi() -> bool:
    """Whether a module other than this package's, whose ranks may have met by MPI, has imported it."""
    mpi = sys.modules.get("mpi4py.MPI")
    for name, module in list(sys.modules.items()) if mpi is not None else ():
        # (isinstance() reads __class__, about which some objects warn.)
        is_other = issubclass(type(module), ModuleType) and name.partition(".")[0] not in ("mpi4py", "runner")
        if is_other and any(value is mpi for value in list(vars(module).values())):
            return True
    return False


def _own_sources() -> Iterator[str]:
    """Return the source files of the program's own modules: none of Python, of installed packages or of the runner."""
    others = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others.append(str(Path(__file__).parent.parent))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(tuple(others)):
            yield "".join(linecache.getlines(file, vars(module)))  # (of a zip file's, too)


def _has_keys(job: Job) -> bool:
    """Whether anybody has written to the job's store, as ranks do that make a group by it, in this process or a child."""
    try:
        return client_of(job).num_keys() > 0
    except RuntimeError:
        return True
