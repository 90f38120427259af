"""The launchers we know, in the order in which they are looked for: one row each.

A cell names the variable that holds the value. ``A|B`` is the first of the two that is set;
``LIST[INDEX]`` is the element INDEX of a list in Slurm's short form (``2(x3),1``).
Adding a launcher is a row here and a captured environment in ``tests/data/launchers``.

Order: launchers that run inside another one's tasks come first (torchrun under srun, mpirun in a
Slurm allocation). MPI goes before Slurm because ``mpirun`` inside a batch job hands every rank the
batch step's ``SLURM_PROCID=0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """One way to start the ranks of a job, described by the variables it sets."""

    name: str
    title: str
    marks: tuple[str, ...]  # all are set: it is this launcher
    absent: tuple[str, ...] = ()  # none is set, or it is another one
    no_task: Mapping[str, frozenset[str]] = field(default_factory=dict)  # values that mean "not one of my ranks"
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    job: tuple[str, ...] = ()  # together they name the job, alike on all its ranks
    mpi: tuple[str, ...] = ()  # one is set: MPI_Init will find the other ranks
    within: frozenset[str] = frozenset()  # launchers that may have started this one, and are then ignored
    half_set_is_an_error: bool = True  # False where the variables are also set outside a rank
    hosts: str = ""  # variable with the job's hosts, or with the name of a file that lists them
    ranks_per_host: str = ""  # the flag that starts N ranks on each host
    unbind: str = ""  # the flag or setting that lets a rank use all its cores


# Slurm's batch script, interactive step and extern step are steps without ranks (slurm.h: SLURM_BATCH_SCRIPT,
# SLURM_INTERACTIVE_STEP, SLURM_EXTERN_CONT, SLURM_PENDING_STEP).
SLURM_STEPS_WITHOUT_RANKS = frozenset(str(0xFFFFFFFF - n) for n in range(2, 6))

SCHEDULERS = frozenset({"slurm", "flux"})
MPI_LAUNCHERS = frozenset({"openmpi", "mvapich2", "intelmpi", "mpich", "pals", "jsrun"})

LAUNCHERS: tuple[Launcher, ...] = (
    Launcher(
        name="torchrun",
        title="torchrun",
        marks=("TORCHELASTIC_RUN_ID",),
        rank="RANK",  # 1
        size="WORLD_SIZE",  # 4
        local_rank="LOCAL_RANK",  # 1
        local_size="LOCAL_WORLD_SIZE",  # 2
        # TORCHELASTIC_RUN_ID=none where no --rdzv-id was given; the port then tells two jobs apart
        job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
        within=SCHEDULERS | MPI_LAUNCHERS,
        half_set_is_an_error=False,  # RANK alone is half of "set by hand"
        hosts="MASTER_ADDR",
        ranks_per_host="torchrun --nproc-per-node {n}",
    ),
    Launcher(
        name="horovodrun",
        title="horovodrun (gloo controller)",
        marks=("HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        rank="HOROVOD_RANK",
        size="HOROVOD_SIZE",
        local_rank="HOROVOD_LOCAL_RANK",
        local_size="HOROVOD_LOCAL_SIZE",
        job=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        within=SCHEDULERS | MPI_LAUNCHERS,
        hosts="HOROVOD_GLOO_RENDEZVOUS_ADDR",  # where horovodrun runs; rank 0 is on the first host it was given
        ranks_per_host="horovodrun -H host1:{n},host2:{n}",
    ),
    Launcher(
        name="pals",
        title="Cray PALS",
        marks=("PALS_RANKID",),
        rank="PALS_RANKID",
        size="PMI_SIZE|PALS_SIZE",
        local_rank="PALS_LOCAL_RANKID",
        local_size="PMI_LOCAL_SIZE|PALS_LOCAL_SIZE",
        job=("PALS_APID",),
        mpi=("PALS_RANKID",),
        within=SCHEDULERS,
        ranks_per_host="mpiexec --ppn {n}",
        unbind="mpiexec --cpu-bind none",
    ),
    Launcher(
        name="jsrun",
        title="LSF jsrun",
        marks=("JSM_NAMESPACE_RANK",),
        rank="JSM_NAMESPACE_RANK",
        size="JSM_NAMESPACE_SIZE",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        local_size="JSM_NAMESPACE_LOCAL_SIZE",
        job=("LSB_JOBID",),
        mpi=("JSM_NAMESPACE_RANK",),
        hosts="LSB_DJOB_RANKFILE",
        ranks_per_host="jsrun --tasks_per_rs {n} --rs_per_host 1",
        unbind="jsrun --bind none",
    ),
    Launcher(
        name="openmpi",
        title="Open MPI",
        marks=("OMPI_COMM_WORLD_RANK",),
        rank="OMPI_COMM_WORLD_RANK",  # 3
        size="OMPI_COMM_WORLD_SIZE",  # 4
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",  # 1; Open MPI 5 may number a host's ranks in another order
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",  # 2
        job=("PMIX_NAMESPACE",),  # 1641021441 (4), prterun-node1-3359@1 (5)
        mpi=("OMPI_COMM_WORLD_RANK",),
        within=SCHEDULERS,
        ranks_per_host="mpirun --map-by ppr:{n}:node",
        unbind="mpirun --bind-to none",
    ),
    Launcher(
        name="mvapich2",
        title="MVAPICH2",
        marks=("MV2_COMM_WORLD_RANK",),
        rank="MV2_COMM_WORLD_RANK",
        size="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
        mpi=("MV2_COMM_WORLD_RANK",),
        within=SCHEDULERS,
        ranks_per_host="mpirun -ppn {n}",
        unbind="MV2_ENABLE_AFFINITY=0",
    ),
    Launcher(
        name="intelmpi",
        title="Intel MPI",
        marks=("PMI_RANK", "MPI_LOCALRANKID", "I_MPI_HYDRA_UUID|I_MPI_MPIRUN"),
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        job=("I_MPI_HYDRA_UUID",),  # 4c0d0000-8473-b2ad-c560-060039ad4949
        mpi=("PMI_RANK",),
        within=SCHEDULERS,
        half_set_is_an_error=False,
        ranks_per_host="mpirun -ppn {n}",
        unbind="mpirun -genv I_MPI_PIN 0",
    ),
    Launcher(
        name="mpich",
        title="MPICH",
        marks=("PMI_RANK", "MPI_LOCALRANKID"),
        absent=("I_MPI_HYDRA_UUID", "I_MPI_MPIRUN"),
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        mpi=("PMI_RANK",),
        within=SCHEDULERS,
        half_set_is_an_error=False,  # srun --mpi=pmi2 sets PMI_RANK as well
        ranks_per_host="mpiexec -ppn {n}",
        unbind="mpiexec -bind-to none",
    ),
    Launcher(
        name="flux",
        title="Flux",
        marks=("FLUX_TASK_RANK",),
        rank="FLUX_TASK_RANK",
        size="FLUX_JOB_SIZE",
        local_rank="FLUX_TASK_LOCAL_ID",
        job=("FLUX_JOB_ID",),
        mpi=("PMI_FD", "PMIX_RANK"),
        within=SCHEDULERS,
        half_set_is_an_error=False,
        ranks_per_host="flux run --tasks-per-node={n}",
        unbind="flux run -o cpu-affinity=off",
    ),
    Launcher(
        name="slurm",
        title="Slurm srun",
        marks=("SLURM_STEP_ID", "SLURM_PROCID"),
        no_task={"SLURM_STEP_ID": SLURM_STEPS_WITHOUT_RANKS},
        rank="SLURM_PROCID",  # 3
        size="SLURM_STEP_NUM_TASKS|SLURM_NTASKS",  # 4
        local_rank="SLURM_LOCALID",  # 1
        local_size="SLURM_STEP_TASKS_PER_NODE[SLURM_NODEID]",  # 2(x2)
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        mpi=("PMIX_RANK", "PMI_FD"),  # srun --mpi=pmix, --mpi=pmi2
        half_set_is_an_error=False,  # a batch script has SLURM_PROCID and no step
        hosts="SLURM_STEP_NODELIST",  # node[1-2]
        ranks_per_host="srun --ntasks-per-node={n}",
        unbind="srun --cpus-per-task={cores}",
    ),
    Launcher(
        name="env",
        title="set by hand",
        marks=("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
        job=("MASTER_ADDR", "MASTER_PORT"),
    ),
)

# Variables of schedulers that name the job, and those that list its hosts (or name a file that does).
SCHEDULER_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
# (Open MPI starts its daemons by srun in a step that leaves out the first host, so the job's list, not the step's.)
HOST_LISTS = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE")

# Variables with the number of the job's tasks, or with the name of a file that has a line for each. (Slurm leaves out
# the first where only --nodes was asked for, which makes a task per node.)
TASK_COUNTS = ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "PBS_NODEFILE", "LSB_DJOB_NUMPROC")

# How a process that no launcher started is described.
SINGLE = Launcher(name="single", title="single process", marks=(), rank="", size="")
