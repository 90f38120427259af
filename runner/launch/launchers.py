"""The known launchers, one row each, in the order in which they are looked for.

A cell names the variable that holds the value. ``A|B`` is the first of the two that is set;
``LIST[INDEX]`` is the element INDEX of a list in Slurm's short form (``2(x3),1``), if the list adds up to the size.
To add a launcher, add a row here and a captured environment in ``tests/data/launchers``; or a row in another package,
which names it by an entry point ``runner.launchers``. No code outside the table depends on a launcher's name.

Order: launchers that run inside another one's tasks come first (torchrun under srun, mpirun in a
Slurm allocation). MPI comes before Slurm because under ``mpirun`` inside a batch job every rank inherits the
batch step's ``SLURM_PROCID=0``.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.base.extensions import extensions, load_extension


class Kind(enum.Enum):
    """The kind of program that starts the ranks."""

    AGENT = "a process per host that the user or another launcher has started, such as torchrun"
    MPI = "an MPI's mpirun"
    SCHEDULER = "a scheduler's own command"
    NOBODY = "the user, process by process"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A way to start the ranks of a job, described by the variables that it sets."""

    name: str
    title: str
    kind: Kind
    # How it is recognised.
    requires: tuple[str, ...]  # variables that must all be set
    excludes: tuple[str, ...] = ()  # variables that must not be set
    not_a_rank: Mapping[str, frozenset[str]] = field(default_factory=dict)  # values that mean "not one of my ranks"
    also_set_by: str = ""  # name of a launcher that may set these variables, too, and is then the one that counts
    nested_in: frozenset[Kind] = frozenset()  # launchers that may have started this one, and are then ignored
    half_set_is_an_error: bool = True  # False where the variables are also set outside a rank
    is_set_in_batch: bool = False  # its batch scripts, too, have a rank, and the processes they start inherit it
    stray: tuple[str, ...] = ()  # those of its variables that are often set where it is not the launcher,
    stray_note: str = ""  # and what they mean then; {title} is the launcher
    # What its variables say.
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    job: tuple[str, ...] = ()  # variables that together name the job, the same on all its ranks
    mpi: tuple[str, ...] = ()  # if one of these is set, MPI_Init finds the other ranks
    hosts: str = ""  # variable with the job's hosts, or with the name of a file that lists them
    first_host_has_no_ranks: bool = False  # the first of these hosts is only where the job was started
    has_store: bool = False  # it serves a store at MASTER_ADDR and MASTER_PORT
    restarts: str = ""  # variable with how often it has started the ranks again
    agents: str = ""  # variable with the number of its agents that form one job
    elastic: str = ""  # variable that is set where it lets ranks come and go while the others train on
    pty: str = ""  # variable that is set in a shell that is one of its tasks
    # Its process, and settings.
    has_process: bool = True  # one of its processes is above the ranks, and the ranks end with it
    is_parent: bool = False  # that process is the ranks' parent; else it is found by ``LAUNCHER_PROCESSES``
    drops_output: str = ""  # variable that is set if it drops its ranks' output once it has been told to end
    without_fabric: Mapping[str, str] = field(default_factory=dict)  # settings for one host without a fast network
    # What messages advise.
    ranks_per_host: str = ""  # the flag that starts N ranks on each host
    unbind: str = ""  # the flag or setting that lets a rank use all its cores
    bind_numa: str = ""  # the flag or setting that keeps a rank on one NUMA node


# Slurm's batch script, interactive step and extern step are steps without ranks (slurm.h: SLURM_BATCH_SCRIPT,
# SLURM_INTERACTIVE_STEP, SLURM_EXTERN_CONT, SLURM_PENDING_STEP).
SLURM_STEPS_WITHOUT_RANKS = frozenset(str(0xFFFFFFFF - n) for n in range(2, 6))

_UNDER_ALL = frozenset({Kind.MPI, Kind.SCHEDULER})
_UNDER_SCHEDULERS = frozenset({Kind.SCHEDULER})

LAUNCHERS: tuple[Launcher, ...] = (
    Launcher(
        name="torchrun",
        title="torchrun",
        kind=Kind.AGENT,
        requires=("TORCHELASTIC_RUN_ID",),
        rank="RANK",  # 1
        size="WORLD_SIZE",  # 4
        local_rank="LOCAL_RANK",  # 1
        local_size="LOCAL_WORLD_SIZE",  # 2
        # TORCHELASTIC_RUN_ID=none where no --rdzv-id was given; the port then tells two jobs apart
        job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
        nested_in=_UNDER_ALL,
        half_set_is_an_error=False,  # RANK alone is half of "set by hand"
        hosts="MASTER_ADDR",
        ranks_per_host="torchrun --nproc-per-node {n}",
        has_store=True,
        restarts="TORCHELASTIC_RESTART_COUNT",
        agents="GROUP_WORLD_SIZE",
        is_parent=True,
    ),
    Launcher(
        name="horovodrun",
        title="horovodrun (gloo controller)",
        kind=Kind.AGENT,
        requires=("HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        rank="HOROVOD_RANK",
        size="HOROVOD_SIZE",
        local_rank="HOROVOD_LOCAL_RANK",
        local_size="HOROVOD_LOCAL_SIZE",
        job=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        elastic="HOROVOD_ELASTIC",
        nested_in=_UNDER_ALL,
        hosts="HOROVOD_GLOO_RENDEZVOUS_ADDR",  # where horovodrun runs; rank 0 is on the first host it was given
        ranks_per_host="horovodrun -H host1:{n},host2:{n}",
        is_parent=True,
    ),
    Launcher(
        name="pals",
        title="Cray PALS",
        kind=Kind.MPI,
        requires=("PALS_RANKID",),
        rank="PALS_RANKID",
        size="PMI_SIZE|PALS_SIZE",
        local_rank="PALS_LOCAL_RANKID",
        local_size="PMI_LOCAL_SIZE|PALS_LOCAL_SIZE",
        job=("PALS_APID",),
        also_set_by="slurm",  # srun --mpi=cray_shasta; up to Slurm 23.02 without the size
        mpi=("PALS_RANKID",),
        nested_in=_UNDER_SCHEDULERS,
        ranks_per_host="mpiexec --ppn {n}",
        unbind="mpiexec --cpu-bind none",
    ),
    Launcher(
        name="jsrun",
        title="LSF jsrun",
        kind=Kind.MPI,
        requires=("JSM_NAMESPACE_RANK",),
        rank="JSM_NAMESPACE_RANK",
        size="JSM_NAMESPACE_SIZE",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        local_size="JSM_NAMESPACE_LOCAL_SIZE",
        job=("LSB_JOBID",),
        mpi=("JSM_NAMESPACE_RANK",),
        hosts="LSB_DJOB_RANKFILE",
        ranks_per_host="jsrun --tasks_per_rs {n} --rs_per_host 1",
        unbind="jsrun --bind none",
        first_host_has_no_ranks=True,  # the launch node
    ),
    Launcher(
        name="openmpi",
        title="Open MPI",
        kind=Kind.MPI,
        requires=("OMPI_COMM_WORLD_RANK",),
        rank="OMPI_COMM_WORLD_RANK",  # 3
        size="OMPI_COMM_WORLD_SIZE",  # 4
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",  # 1; Open MPI 5 may number a host's ranks in another order
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",  # 2
        job=("PMIX_NAMESPACE",),  # 1641021441 (4), prterun-node1-3359@1 (5)
        mpi=("OMPI_COMM_WORLD_RANK",),
        nested_in=_UNDER_SCHEDULERS,
        ranks_per_host="mpirun --map-by ppr:{n}:node",
        unbind="mpirun --bind-to none",
        bind_numa="mpirun --map-by numa --bind-to numa, in place of --bind-to none",
        drops_output="PRTE_LAUNCHED",  # 5
        without_fabric={"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi"},
    ),
    Launcher(
        name="mvapich2",
        title="MVAPICH2",
        kind=Kind.MPI,
        requires=("MV2_COMM_WORLD_RANK",),
        rank="MV2_COMM_WORLD_RANK",
        size="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
        mpi=("MV2_COMM_WORLD_RANK",),
        nested_in=_UNDER_SCHEDULERS,
        ranks_per_host="mpirun -ppn {n}",
        unbind="MV2_ENABLE_AFFINITY=0",
    ),
    Launcher(
        name="intelmpi",
        title="Intel MPI",
        kind=Kind.MPI,
        requires=("PMI_RANK", "MPI_LOCALRANKID", "I_MPI_HYDRA_UUID|I_MPI_MPIRUN"),
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        job=("I_MPI_HYDRA_UUID",),  # 4c0d0000-8473-b2ad-c560-060039ad4949
        mpi=("PMI_RANK",),
        nested_in=_UNDER_SCHEDULERS,
        half_set_is_an_error=False,
        ranks_per_host="mpirun -ppn {n}",
        unbind="mpirun -genv I_MPI_PIN 0",
        bind_numa="mpirun -genv I_MPI_PIN_DOMAIN numa",
    ),
    Launcher(
        name="mpich",
        title="MPICH",
        kind=Kind.MPI,
        requires=("PMI_RANK", "MPI_LOCALRANKID"),
        excludes=("I_MPI_HYDRA_UUID", "I_MPI_MPIRUN"),
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        mpi=("PMI_RANK",),
        nested_in=_UNDER_SCHEDULERS,
        half_set_is_an_error=False,  # srun --mpi=pmi2 sets PMI_RANK as well
        ranks_per_host="mpiexec -ppn {n}",
        unbind="mpiexec -bind-to none",
        bind_numa="mpiexec -bind-to numa, in place of none",
    ),
    Launcher(
        name="flux",
        title="Flux",
        kind=Kind.SCHEDULER,
        requires=("FLUX_TASK_RANK",),
        rank="FLUX_TASK_RANK",
        size="FLUX_JOB_SIZE",
        local_rank="FLUX_TASK_LOCAL_ID",
        job=("FLUX_JOB_ID",),
        mpi=("PMI_FD", "PMIX_RANK"),
        nested_in=_UNDER_SCHEDULERS,
        half_set_is_an_error=False,
        ranks_per_host="flux run --tasks-per-node={n}",
        unbind="flux run -o cpu-affinity=off",
    ),
    Launcher(
        name="slurm",
        title="Slurm srun",
        kind=Kind.SCHEDULER,
        requires=("SLURM_STEP_ID", "SLURM_PROCID"),
        not_a_rank={"SLURM_STEP_ID": SLURM_STEPS_WITHOUT_RANKS},
        rank="SLURM_PROCID",  # 3
        size="SLURM_STEP_NUM_TASKS|SLURM_NTASKS",  # 4
        local_rank="SLURM_LOCALID",  # 1
        local_size="SLURM_STEP_TASKS_PER_NODE[SLURM_NODEID]",  # 2(x2)
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        mpi=("PMIX_RANK", "PMI_FD", "PALS_RANKID"),  # srun --mpi=pmix, --mpi=pmi2, --mpi=cray_shasta
        half_set_is_an_error=False,  # a batch script has SLURM_PROCID and no step
        hosts="SLURM_STEP_NODELIST",  # node[1-2]
        ranks_per_host="srun --ntasks-per-node={n}",
        unbind="srun --cpus-per-task={cores}",
        bind_numa="srun --cpu-bind=ldoms --distribution=block:cyclic",
        is_set_in_batch=True,
        stray=("SLURM_PROCID", "SLURM_NTASKS"),
        stray_note="the Slurm batch script's, not this rank's",
        pty="SLURM_PTY_PORT",
    ),
    Launcher(
        name="submitit",
        title="submitit's local executor",  # on a cluster submitit starts its tasks by srun
        kind=Kind.SCHEDULER,
        requires=("SUBMITIT_LOCAL_GLOBALID",),
        rank="SUBMITIT_LOCAL_GLOBALID",
        size="SUBMITIT_LOCAL_NTASKS",
        local_rank="SUBMITIT_LOCAL_LOCALID",
        local_size="SUBMITIT_LOCAL_NTASKS",  # it has one host
        job=("SUBMITIT_LOCAL_JOB_ID",),  # the process of its controller
        nested_in=_UNDER_SCHEDULERS,
        half_set_is_an_error=False,
        is_parent=True,
        ranks_per_host="executor.update_parameters(tasks_per_node={n})",
    ),
    Launcher(
        name="env",
        title="set by hand",
        kind=Kind.NOBODY,
        requires=("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        rank="RANK",
        size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
        job=("MASTER_ADDR", "MASTER_PORT"),
        has_process=False,
        stray=("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        stray_note="an incomplete set; {title} is the launcher",
    ),
)

# Variables of schedulers that name the job, and those that list its hosts (or name a file that does).
SCHEDULER_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")

# (The job's list, not the step's: Open MPI starts its daemons by srun in a step without the first host.)
HOST_LISTS = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "OAR_NODEFILE")

# Variables with the number of the job's tasks, or with the name of a file that has a line for each. (Slurm does not set
# the first if only --nodes was given, which means one task per node.)
TASK_COUNTS = ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "PBS_NODEFILE", "LSB_DJOB_NUMPROC")

# How a process that no launcher started is described.
SINGLE = Launcher(
    name="single", title="single process", kind=Kind.NOBODY, requires=(), rank="", size="", has_process=False
)


@functools.cache
def launchers() -> tuple[Launcher, ...]:
    """All rows, those of other packages first.

    Raises:
        UsageError: an entry point ``runner.launchers`` does not load or is not a ``Launcher``.
    """
    return (*(load_extension(point, "launcher", Launcher) for point in extensions("runner.launchers")), *LAUNCHERS)
