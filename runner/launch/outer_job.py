"""Variables that a process inherits from its job, and must not hand on to a job that it submits or a launcher that it starts.

sbatch and bsub give the new job the variables of their caller, and srun takes options that were not given from variables:
under the SLURM_CPU_BIND of the step in which a job was submitted all ranks of the job are bound to that step's cores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from runner.launch.copies import COPY_STARTERS
from runner.launch.detect import is_marked
from runner.launch.launchers import launchers

# Variables that a step has, and from which srun takes where its tasks are to run (srun(1), "Input environment variables").
_PLACES = ("SLURM_CPU_BIND", "SLURM_MEM_BIND", "SBATCH_CPU_BIND", "SBATCH_MEM_BIND", "SLURM_DIST")
_OF_SLURM = ("SLURM_", "SLURMD_", "SRUN_", *_PLACES)
# Those that say which Slurm it is, or what its commands print.
_OF_USERS = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT"})
_OF_PROCESS_MANAGERS = ("PMI_", "PMIX_", "PALS_", "OMPI_COMM_WORLD_", "PRTE_LAUNCHED", "HYDI_", "I_MPI_HYDRA_")
_SETTINGS_OF_PMIX = "PMIX_MCA_"  # users'
# The GPUs of a step or job. Slurm sets them anew only for a job that has GPUs.
_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")


def for_a_new_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables for sbatch, qsub and bsub: without those of the job and of the rank that this process may be."""
    dropped = {"RUNNER_SITE", *(starter.variable for starter in COPY_STARTERS)}
    for row in launchers():
        if is_marked(row, environment):
            cells = (*row.requires, row.rank, row.size, row.local_rank, row.local_size, *row.job)
            dropped.update(name for cell in cells for name in re.findall(r"\w+", cell))
    if "SLURM_JOB_ID" in environment:
        dropped |= set(_beginning(environment, _OF_SLURM)) - _OF_USERS
        if "SLURM_JOB_GPUS" in environment or "SLURM_STEP_GPUS" in environment:
            dropped.update(_GPUS)
    managers = _beginning(environment, _OF_PROCESS_MANAGERS)
    dropped.update(name for name in managers if not name.startswith(_SETTINGS_OF_PMIX))
    return {name: value for name, value in environment.items() if name not in dropped}


def places_of_step(environment: Mapping[str, str]) -> list[str]:
    """The variables by which a launcher that is started in a step of Slurm would put all its ranks where the step's tasks are."""
    return _beginning(environment, _PLACES) if "SLURM_STEP_ID" in environment else []


def _beginning(environment: Mapping[str, str], prefixes: Iterable[str]) -> list[str]:
    return [name for name in environment if name.startswith(tuple(prefixes))]
