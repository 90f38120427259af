"""The GPUs that a process may use, by name: those that drivers show and variables choose.

NVIDIA's are known by NVML, without CUDA and torch. AMD's and Intel's, and NVIDIA's without NVML, are counted by torch in a child
process, because a process that has started a driver cannot be forked any more. GPUs of AMD and Intel, WSL2, Jetson and MIG have been
tried on stand-ins only.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.hardware import nvml
from runner.launch.launchers import SLURM_STEPS_WITHOUT_RANKS
from runner.versions.torch_build import TorchBuild

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs that a process may use.

    Attributes:
        names: one per GPU, in the order of torch's indices; all processes of a host have the same name for the same GPU.
        problem: why there are none, or fewer than there could be; "" where nothing is known to be wrong.
        allotted: the scheduler's variable that promises GPUs, as ``NAME=value``; "" if there is none.
        mask: the variable that chooses among GPUs, as ``NAME=value``; "" if there is none.
        hidden: whether the mask hides all GPUs.
    """

    names: list[str]
    problem: str = ""
    allotted: str = ""
    mask: str = ""
    hidden: bool = False


@dataclass(frozen=True)
class _Present:
    """The GPUs that a driver shows.

    Attributes:
        names: in the order of their numbers; "" for one that does not answer.
        slices: of each GPU in MIG mode, its instances that compute.
        lacks_nvml: whether there are GPUs that NVML does not show, because it is not installed.
    """

    names: list[str]
    slices: Mapping[str, list[str]] = field(default_factory=dict)
    problem: str = ""
    lacks_nvml: bool = False

    @property
    def has_gpus(self) -> bool:
        return self.lacks_nvml or any(self.names)


class _Maker(NamedTuple):
    """A maker of GPUs: torch's name for its devices, and the variables that choose among them."""

    title: str
    device: str  # torch's device type
    masks: tuple[str, ...]


MAKERS = {
    "nvidia": _Maker("NVIDIA", "cuda", ("CUDA_VISIBLE_DEVICES",)),
    "amd": _Maker("AMD", "cuda", ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "intel": _Maker("Intel", "xpu", ("ZE_AFFINITY_MASK",)),
}

# Set by schedulers in jobs that have GPUs (Slurm's srun(1) and sbatch(1); Torque's qsub(1)): those that name them, and numbers.
_NAMES_ALLOTTED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "PBS_GPUFILE", "LSB_GPU_ALLOC")
_NUMBERS_ALLOTTED = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "PBS_NGPUS")
# What Slurm says of the job, which all its steps inherit.
_OF_THE_JOB = ("SLURM_JOB_GPUS", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")
# In these schedulers' jobs a mask is the only sign of an allotment.
_MASKING_JOBS = ("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
# What schedulers and users write for "no GPU".
_NONE = ("", "-1", "0x0", "NoDevFiles", "(null)", "none", "void")


def visible_gpus(environment: Mapping[str, str], torch: TorchBuild, system: Path = Path("/")) -> Gpus:
    """The GPUs that this process may use by this torch.

    Args:
        system: the root of the file system.
    """
    maker = MAKERS.get(torch.maker or ("" if torch.version else "nvidia"))
    own = maker.masks if maker else ()
    others = (name for each in MAKERS.values() for name in each.masks)
    masks = [name for name in dict.fromkeys((*own, *others)) if name in environment]
    naming = [name for name in masks if environment[name] not in _NONE]
    hiding = [name for name in masks if name in own and name not in naming]
    mask = " ".join(f"{name}={environment[name]}" for name in hiding or naming)
    allotted = _allotted(environment, "" if hiding else mask)
    names, problem = list[str](), ""
    present = _nvidia(system) if maker is MAKERS["nvidia"] else None
    if present is not None and not present.lacks_nvml:
        names, problem = _visible_nvidia(present, environment), present.problem
        if not names and mask and not hiding and (count := len(list(filter(None, present.names)))):
            problem = "; ".join(filter(None, [f"{mask} chooses none of the GPUs here ({count})", problem]))
    elif maker is not None:
        names, problem = _counted(maker.device, mask)
    if not names and not problem:
        problem = _of_another_make(torch, maker, system, is_promised=bool(allotted or naming))
    return Gpus(names=names, problem=problem, allotted=allotted, mask=mask, hidden=bool(hiding))


def device_type(torch: TorchBuild) -> str:
    """torch's device type for the GPUs that it is built for: ROCm's are ``cuda``, too."""
    return MAKERS[torch.maker].device if torch.maker else "cuda"


def _allotted(environment: Mapping[str, str], mask: str) -> str:
    step = environment.get("SLURM_STEP_ID", "")
    # A step of srun without GPUs inherits the job's variables, but no masks.
    has_none = step.isdecimal() and step not in SLURM_STEPS_WITHOUT_RANKS and not mask
    for name in (*_NAMES_ALLOTTED, *_NUMBERS_ALLOTTED):
        value = environment.get(name, "").strip()
        if _promises(name, value) and not (has_none and name in _OF_THE_JOB):
            return f"{name}={value}"
    return mask if any(environment.get(name) for name in _MASKING_JOBS) else ""


def _promises(name: str, value: str) -> bool:
    """Whether a scheduler's variable says that there is a GPU."""
    if value in _NONE:
        return False
    if name == "PBS_GPUFILE":  # Torque sets it in jobs without GPUs, too; the file has a line per GPU
        return Path(value).is_file() and bool(Path(value).read_text(errors="replace").strip())
    if name in _NUMBERS_ALLOTTED:  # NUMBER, or a list of TYPE:NUMBER
        return any(entry.rpartition(":")[2].strip() not in ("", "0") for entry in value.split(","))
    return True


def _of_another_make(torch: TorchBuild, maker: _Maker | None, system: Path, *, is_promised: bool) -> str:
    """Return the reason if the host's GPUs are not of the maker that torch is built for.

    AMD's are told of only where the job was promised GPUs: many processors have one.
    """
    built = f"for {maker.title}'s" if maker else "for CPUs only"
    if maker is not MAKERS["nvidia"] and (maker is None or is_promised) and _nvidia(system).has_gpus:
        return f"torch {torch.version} is built {built}, and the GPUs here are NVIDIA's"
    if maker is not MAKERS["amd"] and is_promised and (system / "dev/kfd").exists():
        return f"torch {torch.version} is built {built}, and the GPUs here are AMD's"
    return ""


def chosen(mask: str, present: Sequence[str]) -> list[str]:
    """The GPUs that a mask shows, in its order.

    It is a list of indices or, if the first entry begins with GPU-, of beginnings of names that fit one GPU each. It ends before the
    first entry that fits none; an entry given twice hides all, even behind that one (as torch/cuda/__init__.py reads it; the CUDA
    programming guide, "CUDA environment variables").
    """
    entries = [entry.strip() for entry in mask.split(",")]
    by_name = entries[0].startswith("GPU-")
    form = "GPU-.*" if by_name else r"\+?(\d+)"  # as C's strtoul: what follows the digits is ignored
    matches = itertools.takewhile(bool, (re.match(form, entry) for entry in entries))
    wanted: list[str | int] = [match[0] if by_name else int(match[1]) for match in matches if match]
    found: list[str] = []
    for entry in wanted:
        fitting = [name for i, name in enumerate(present) if (name.startswith(str(entry)) if by_name else i == entry)]
        if len(fitting) != 1:
            break
        found += fitting
    given_twice = len({*wanted}) < len(wanted) or len({*found}) < len(found)
    return [] if given_twice else found


# NVIDIA

_PATIENCE = 120.0  # seconds for the driver, which wakes its GPUs one by one where nothing keeps them awake


def _nvidia(system: Path) -> _Present:
    """Ask the driver in a thread, because a broken driver may not return."""
    answer: list[_Present] = []
    asking = threading.Thread(target=lambda: answer.append(_ask_nvidia(system)), name="NVML", daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    return answer[0] if answer else _Present([], problem=f"the NVIDIA driver has not answered within {_PATIENCE:g} s")


def _ask_nvidia(system: Path) -> _Present:
    """Ask the driver's library, which may be missing, as in a container without its mounts."""
    try:
        with nvml.started() as library:
            return _shown_by(library)
    except Exception as error:
        has_gpus = any((system / "dev").glob("nvidia[0-9]*")) or (system / "dev/nvhost-gpu").exists()  # Jetson's
        if nvml.code_of(error) in (nvml.NO_DRIVER, nvml.MISMATCH):  # then CUDA does not start, either
            return _Present([], problem=f"the NVIDIA driver does not answer: {error}" if has_gpus else "")
        return _Present([], lacks_nvml=has_gpus)


def _shown_by(library: Any) -> _Present:
    names, slices, problems = [], {}, []
    try:
        for index in range(library.nvmlDeviceGetCount()):
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                name = nvml.uuid_of(library, handle, index)
            except Exception as error:
                if nvml.code_of(error) != nvml.NO_PERMISSION:  # that of another job has no number here
                    problems.append(f"GPU {index} does not answer: {error}")
                    names.append("")
                continue
            names.append(name)
            if (parts := nvml.slices_of(library, handle)) is not None:
                slices[name] = parts
    except Exception as error:
        problems.append(f"the NVIDIA driver does not answer: {error}")
    return _Present(names, slices, "; ".join(problems))


def _visible_nvidia(present: _Present, environment: Mapping[str, str]) -> list[str]:
    """Apply ``CUDA_VISIBLE_DEVICES``. If a GPU is divided by MIG, CUDA shows a process one instance and nothing else."""
    mask = environment.get("CUDA_VISIBLE_DEVICES")
    if mask is not None and mask.startswith("MIG-"):
        return [mask.split(",")[0].strip()] if any(present.names) else []
    names = present.names if mask is None else chosen(mask, present.names)
    divided = [name for name in names if name in present.slices]
    instances = [instance for name in divided for instance in present.slices[name]]
    return instances[:1] or [name for name in names if name and name not in divided]


# AMD and Intel, and NVIDIA without NVML


def _counted(device: str, mask: str) -> tuple[list[str], str]:
    """Ask torch in a child process for its devices. Returns their names and, without any, the problem."""
    from multiprocessing import get_context

    ours, theirs = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_ask_torch, args=(device, mask, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(_PATIENCE):
            return [], f"torch has not counted its devices within {_PATIENCE:g} s"
        found: tuple[list[str], str] = ours.recv()
        return found
    except EOFError:
        child.join()
        return [], f"the process in which torch counted its devices ended with code {child.exitcode}"
    finally:
        child.kill()


def _ask_torch(device: str, mask: str, answer: Connection) -> None:
    """Send the names of torch's devices, equal in all processes of a host."""
    import torch

    try:
        module = torch.get_device_module(device)
        every = [module.get_device_properties(index) for index in range(module.device_count())]
        # Older releases tell no UUID. Then processes with different masks count as having different GPUs.
        answer.send(([str(getattr(one, "uuid", "")) or f"{mask} {index}" for index, one in enumerate(every)], ""))
    except Exception as error:
        answer.send(([], f"{type(error).__name__}: {' '.join(str(error).split())}"))
