"""Whether the copies of a program have run alone: N times the same training, where one on N ranks was meant."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

from runner.job import Job
from runner.torchrun.served_store import has_asked_for_ranks
from runner.versions import torch_private

# By these libraries a program may reach its other ranks without torch.distributed.
_LIBRARIES = ("horovod", "deepspeed", "ray", "distributed", "jax", "tensorflow", "zmq", "grpc")
# What a program names that does so by itself, or that knows which share of the work is its own.
_WORDS = re.compile(
    r"RANK|WORLD_SIZE|PROCID|\b(mpi4py|socket|socketserver|xmlrpc|multiprocessing\.(connection|managers)|shared_memory|"
    r"spawn|start_processes|FileStore|HashStore)\b"
)
_PATIENCE = timedelta(seconds=10)


def ran_alone(job: Job, source: bytes = b"") -> bool:
    """Whether a program that has imported torch, and ends on rank 0, has made no process group and used nothing in its place.

    In doubt it has.

    Args:
        source: of a program that is in no file.
    """
    is_rank_0 = job.rank == 0 and os.getpid() == job.board.process
    if not is_rank_0 or job.size == 1 or job.context.launcher.has_store or "torch" not in sys.modules:
        return False
    if has_asked_for_ranks.is_set() or any(name in sys.modules for name in _LIBRARIES):
        return False
    return not (_has_group() or _uses_mpi() or _names_another_way(source.decode(errors="replace")) or _has_keys(job))


def _has_group() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _uses_mpi() -> bool:
    """Whether a module other than this package's has a name for MPI, which the rendezvous may have imported."""
    mpi = {id(sys.modules.get(name)) for name in ("mpi4py", "mpi4py.MPI")}
    for name, module in list(sys.modules.items()):
        # (isinstance() reads __class__, about which some objects warn.)
        if issubclass(type(module), ModuleType) and name.partition(".")[0] not in ("mpi4py", "runner"):
            for value in list(vars(module).values()):
                if value is not None and (id(value) in mpi or type(value).__module__ == "mpi4py.MPI"):
                    return True
    return False


def _names_another_way(source: str) -> bool:
    """Whether the program says somewhere that there are ranks."""
    return any(_WORDS.search(text) for text in (source, *_own_sources()))


def _own_sources() -> Iterator[str]:
    """Those of the program's modules: not of Python's, of installed packages' and of this one's."""
    others = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others.append(str(Path(__file__).parent.parent))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(tuple(others)):
            yield "".join(linecache.getlines(file, vars(module)))  # (of a zip file's, too)


def _has_keys(job: Job) -> bool:
    """Whether anybody has written to the job's store, as ranks do that make a group by it, in this process or a child."""
    try:
        store = torch_private.TCPStore(
            job.endpoint.host, job.endpoint.port, is_master=False, wait_for_workers=False, timeout=_PATIENCE
        )
        return store.num_keys() > 0
    except RuntimeError:
        return True
