"""A fingerprint of everything that must match before processes may share an agent and one import of torch.

Whatever Python and torch read while they start is in it, and what a forked process cannot change afterwards. The variables by which
launchers tell ranks apart are not.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from typing import NamedTuple

# The options, the first two, by which `supervise` starts each attempt: a folder of its own, and when the first of them began.
OF_SUPERVISE = ("--log-dir", "--began")

# Variables that torch and what it loads read while they are imported; and those that Python and its libraries read at their start.
_READ_BY_TORCH = re.compile(
    r"OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|NUMEXPR_|ATEN_|C10_|TORCH|PYTORCH_|TRITON_|KINETO_|CUDA_|NVIDIA_|HIP_|HSA_|ROCM_|"
    r"NPY_|NUMPY_"
)
_READ_BY_PYTHON = re.compile(r"LD_|PYTHON|GLIBC_|MALLOC_|LANG$|LC_|TZ$|VIRTUAL_ENV|CONDA_PREFIX|HF_|RUNNER_")
# Read later, when a device is first used; some launchers and job scripts give each rank its own. TORCHELASTIC_* tell ranks apart.
_LATER = re.compile(
    r"(CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING|CUDA_CACHE_|HIP_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|"
    r"TORCHELASTIC_|TORCH_NCCL_|TORCH_FR_|TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR)"
)
_JOBS = (
    *("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID", "PALS_APID", "FLUX_JOB_ID"),
    *("PBS_JOBID", "LSB_JOBID"),
)
_MEETING = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_RANKS = (
    *("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID", "PALS_RANKID"),
    *("JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "HOROVOD_RANK"),
)
# OpenMP binds threads when it is loaded.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_LIMITS = ("memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max")  # of a control group
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_STATUS = ("Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp")  # lines of /proc/PID/status


def is_read_by_torch(name: str) -> bool:
    """Whether a variable may be read while torch and what it loads are imported."""
    return bool(_READ_BY_TORCH.match(name) and not _LATER.match(name))


class Identity(NamedTuple):
    """The fingerprint of a process as its launcher has started it.

    Attributes:
        launch: of ranks of this host that share an agent.
        supervised: of launches of one `supervise`, of which each can take over what the one before has imported; else empty.
    """

    launch: bytes
    supervised: bytes


def identity() -> Identity:
    """Return the fingerprint of this process."""
    words, common = sys.argv[1:], _common()
    # A process that no launcher has started shares with none: another job of the same shell may have the same words.
    own = os.getpid() if not any(name in os.environ for name in _RANKS) else 0
    launch = repr((common, os.getppid(), own, words, [os.environ.get(name) for name in _JOBS]))
    supervised = ""
    if tuple(words[0:4:2]) == OF_SUPERVISE:
        supervised = repr((common, os.path.dirname(words[1]), words[3:]))
    return Identity(*(text.encode(errors="surrogateescape") for text in (launch, supervised)))


def _common() -> list[object]:
    """Return the facts that neither launcher nor attempt changes."""
    status = dict(line.partition(":")[::2] for line in _read("/proc/self/status").splitlines())
    return [
        os.getpgrp() if os.isatty(0) else 0,  # a terminal stops and ends a whole group, its agent among it
        *(sys.version, sys.executable, sys.prefix, sys.orig_argv[: -len(sys.argv[1:]) or None], sys.argv[0], sys.path),
        _folder(),
        [number for number in (0, 1, 2) if not is_open(number)],
        sorted(item for item in os.environ.items() if is_read_by_torch(item[0]) or _READ_BY_PYTHON.match(item[0])),
        [os.environ.get(name) for name in _MEETING],
        os.getpriority(os.PRIO_PROCESS, 0),
        sorted(os.sched_getaffinity(0)) if any(name in os.environ for name in _BINDING) else None,
        os.sched_getscheduler(0),
        _read("/proc/self/numa_maps", lines=1).split(" ")[1:2],  # the policy by which memory is placed (numactl)
        _read("/proc/self/oom_score_adj"),
        *(os.getuid(), os.getgid(), [status.get(name, "") for name in _STATUS]),
        _read("/proc/self/limits"),
        *(_target(f"/proc/self/ns/{name}") for name in _NAMESPACES),
        _target("/proc/self/root"),
        _control_group(),
    ]


def _control_group() -> object:
    """Describe the effective limits of the control group: Slurm gives each task of a step its own, perhaps without limits.

    All that an agent forks is in its own group, and would share what that may use.
    """
    found: list[object] = []
    for line in _read("/proc/self/cgroup").splitlines():
        path = line.partition("::")[2]
        folder = f"/sys/fs/cgroup{path}"
        if not path or "/task" not in path or any(_is_limited(f"{folder}/{name}") for name in _LIMITS):
            found.append(line)
            continue
        above = path.rpartition("/")[0]
        allowed = [_read(f"{folder}/{name}") for name in ("cpuset.cpus.effective", "cpuset.mems.effective")]
        found.append((above, allowed, _devices()))
    return found


def _is_limited(path: str) -> bool:
    text = _read(path)
    return bool(text) and not text.startswith("max")


def _devices() -> list[str]:
    """The GPUs that this process may open."""
    found = []
    for name in sorted(os.listdir("/dev")):
        if re.fullmatch(r"nvidia\d+|kfd", name):
            try:
                os.close(os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC))
                found.append(name)
            except OSError:
                continue
    return found


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def is_open(number: int) -> bool:
    """Whether this process has a descriptor of this number."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _read(path: str, lines: int | None = None) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return "".join(itertools.islice(file, lines))
    except OSError:  # not in this version of Linux
        return ""


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
