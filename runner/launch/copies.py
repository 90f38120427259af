"""Commands that start copies of a process in a job and give none of them a rank: pbsdsh, blaunch, ssh in a loop, …"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.base.errors import LaunchError
from runner.launch.context import LaunchContext
from runner.launch.detect import tasks_of_job
from runner.launch.launcher_processes import ancestors, typed_in_a_shell


@dataclass(frozen=True, kw_only=True)
class CopyStarter:
    """A command that starts copies, described by the variable that it sets in each."""

    title: str
    variable: str
    values_of_the_script: frozenset[str] = frozenset()  # those that the batch script, too, has
    size: str = ""  # variable with the number of copies, if it sets one


# PBS numbers the tasks and the hosts of a job, those of the batch script first; blaunch numbers its own tasks, from 1. The
# others give ranks in a way that is in no row of the table of launchers, most of them without saying how many there are.
COPY_STARTERS = (
    CopyStarter(title="pbsdsh", variable="PBS_TASKNUM", values_of_the_script=frozenset({"0", "1"})),
    CopyStarter(title="pbsdsh", variable="PBS_NODENUM", values_of_the_script=frozenset({"0"})),
    CopyStarter(title="blaunch", variable="LSF_PM_TASKID"),
    CopyStarter(title="srun", variable="SLURM_PROCID", values_of_the_script=frozenset({"0"})),
    CopyStarter(title="aprun", variable="ALPS_APP_PE"),
    CopyStarter(title="an unknown MPI's launcher", variable="PMI_RANK"),
    CopyStarter(title="an unknown PMIx launcher", variable="PMIX_RANK"),
    CopyStarter(title="Platform MPI's mpirun", variable="MPI_RANKID", size="MPI_NRANKS"),
    CopyStarter(title="mpirun_rsh", variable="MPIRUN_RANK", size="MPIRUN_NPROCS"),
    CopyStarter(title="poe", variable="MP_CHILD", size="MP_PROCS"),
)

_SSH_SERVERS = frozenset({"sshd", "sshd-session", "dropbear"})
# What starts a job's script or shell: above it a login's sshd may be, too.
_SCRIPT_STARTERS = frozenset({"salloc", "slurmstepd", "pbs_mom", "qsub", "sbatchd", "bsub", "sge_shepherd"})


def starter_of_copies(context: LaunchContext) -> str:
    """Return the program that started this process, which has no rank, as one of several, with the sign of it; "" if there is no such sign.

    A batch script may start one process, and a person may start one in a shell: these are none.
    """
    environment = context.environment
    if tasks_of_job(environment) == 1:
        return ""
    found = next((starter for starter in COPY_STARTERS if _is_by(starter, environment)), None)
    what = f"{found.title} ({found.variable}={environment[found.variable]})" if found else _started_elsewhere(context)
    return "" if not what or typed_in_a_shell() else what


def _is_by(starter: CopyStarter, environment: Mapping[str, str]) -> bool:
    value = environment.get(starter.variable, "")
    return bool(value) and value not in starter.values_of_the_script and environment.get(starter.size) != "1"


def _started_elsewhere(context: LaunchContext) -> str:
    """Detect a tool that starts processes on other hosts with the job's variables, such as ssh, pdsh, clush and parallel."""
    try:
        hosts = [_short(host) for host in context.hosts]
    except LaunchError:  # a list that cannot be read lists none
        return ""
    own = _short(context.host)
    if len(hosts) < 2 or own not in hosts:
        return ""
    # Slurm's variable is the host of the batch script, also in a copy that has got the script's environment.
    firsts = {hosts[0], _short(context.environment.get("SLURMD_NODENAME", ""))}
    if own not in firsts:
        return f"a command on another of the job's {len(hosts)} hosts"
    names = (process.name() for process in ancestors())
    nearest = next((name for name in names if name in _SSH_SERVERS | _SCRIPT_STARTERS), "")
    return "ssh" if nearest in _SSH_SERVERS else ""


def _short(host: str) -> str:
    return host.partition(".")[0]
