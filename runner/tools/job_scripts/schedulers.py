"""What a job script asks a scheduler for, and how each scheduler is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runner.base.errors import EXIT_REQUEUE
from runner.base.quantities import clock_text, exact_size_text
from runner.launch.commands import MPIS


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a job asks its scheduler for."""

    name: str
    nodes: int
    ranks_per_node: int
    cores_per_rank: int
    gpus_per_node: int
    gpu_type: str
    memory: int  # bytes per node; 0 for the default
    log: str  # a file name, in which the scheduler may fill in the job's name; "" for the default
    time: int  # seconds
    queue: str
    account: str


@dataclass(frozen=True, kw_only=True)
class Requeue:
    """How a job that has saved before its time limit gets back into the queue."""

    line: str  # of the script, that allows it
    option: tuple[str, ...]  # of a workload, that brings it about


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """How a scheduler is asked: by script lines that begin with a mark, and a program that submits the script."""

    mark: str
    index: str  # variable with a job's number in its array
    submit: str  # reads the script from its standard input
    scripts: dict[str, str]  # by --mpi; the first is the default
    request: Callable[[Shape], list[str]]
    settings: Callable[[Shape], dict[str, str]] = lambda shape: {}
    requeue: Callable[[Shape], Requeue] | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)  # option → what to do without it


def _slurm(shape: Shape) -> list[str]:
    gpus = shape.gpu_type, str(shape.gpus_per_node)
    return [
        f"--job-name={shape.name}",
        f"--nodes={shape.nodes}",
        f"--ntasks-per-node={shape.ranks_per_node}",
        f"--cpus-per-task={shape.cores_per_rank}",
        f"--time={clock_text(shape.time)}",
        "--open-mode=append",  # what was printed before the job was put back into the queue is kept
        f"--output={shape.log or '%x-%j.out'}",  # job name and number
        *([f"--gpus-per-node={':'.join(filter(None, gpus))}"] if shape.gpus_per_node else []),
        *([f"--mem={exact_size_text(shape.memory)}"] if shape.memory else []),
        *([f"--partition={shape.queue}"] if shape.queue else []),
        *([f"--account={shape.account}"] if shape.account else []),
    ]


def _pbs(shape: Shape) -> list[str]:
    select = f"{shape.nodes}:ncpus={shape.ranks_per_node * shape.cores_per_rank}:mpiprocs={shape.ranks_per_node}"
    if shape.gpus_per_node:
        select += f":ngpus={shape.gpus_per_node}"
    if shape.memory:
        select += f":mem={exact_size_text(shape.memory).lower()}b"
    return [
        f"-N {shape.name}",
        f"-l select={select}",
        "-l place=scatter",  # otherwise the nodes may be parts of one host
        f"-l walltime={clock_text(shape.time)}",
        "-j oe",  # stdout and stderr to one file, by default NAME.oNUMBER
        *([f"-o {shape.log}"] if shape.log else []),
        *([f"-q {shape.queue}"] if shape.queue else []),
        *([f"-A {shape.account}"] if shape.account else []),
    ]


def _lsf(shape: Shape) -> list[str]:
    return [
        f"-J {shape.name}",
        f"-nnodes {shape.nodes}",
        f"-W {_hours_and_minutes(shape.time)}",
        f"-o {shape.log or f'{shape.name}-%J.out'}",  # without -e, both stdout and stderr
        *([f"-q {shape.queue}"] if shape.queue else []),
        *([f"-P {shape.account}"] if shape.account else []),
    ]


def _start(seconds: int) -> int:
    """Seconds that a job of so many may take until its first rank starts: modules, jsrun, one interpreter per rank."""
    return min(300, seconds // 10)


def _hours_and_minutes(seconds: int) -> str:
    minutes = -(-seconds // 60)  # rounded up
    return f"{minutes // 60}:{minutes % 60:02d}"


def _lsf_settings(shape: Shape) -> dict[str, str]:
    gpus = {"GPUS_PER_HOST": str(shape.gpus_per_node)} if shape.gpus_per_node else {}
    return {"RANKS_PER_HOST": str(shape.ranks_per_node)} | gpus


SCHEDULERS = {
    "slurm": Scheduler(
        mark="#SBATCH",
        index="SLURM_ARRAY_TASK_ID",
        submit="sbatch",
        scripts={"srun": "slurm_srun.sh", **dict.fromkeys(MPIS, "slurm_mpirun.sh")},
        request=_slurm,
        requeue=lambda shape: Requeue(line="--requeue", option=("--requeue",)),
    ),
    "pbs": Scheduler(
        mark="#PBS",
        index="PBS_ARRAY_INDEX",
        submit="qsub",
        scripts=dict.fromkeys(MPIS, "pbs_mpirun.sh"),
        request=_pbs,
        lacks={
            "a GPU's type": "every site names it in its own way; leave it out, and choose by --queue, or write the script "
            "with -o and add what your site calls it to select=",
            "--requeue": "submit a chain of jobs, each with qsub -W depend=afternotok:JOB after the one before",
        },
    ),
    "lsf": Scheduler(
        mark="#BSUB",
        index="LSB_JOBINDEX",
        submit="bsub",
        scripts={"jsrun": "lsf_jsrun.sh"},
        request=_lsf,
        settings=_lsf_settings,
        # LSF does not tell a job its end.
        requeue=lambda shape: Requeue(
            line=f"-Q {EXIT_REQUEUE}", option=("--time-limit", clock_text(shape.time - _start(shape.time)))
        ),
        # jsrun needs bsub -nnodes, which allocates whole hosts.
        lacks={
            "a GPU's type": "a job has the GPUs of its hosts; leave it out, and choose the hosts by --queue",
            "--memory": "a job has all the memory of its hosts; leave it out",
        },
    ),
}
# What starts the ranks (--mpi), in one of these scripts or more.
STARTERS = tuple(dict.fromkeys(name for one in SCHEDULERS.values() for name in one.scripts))
