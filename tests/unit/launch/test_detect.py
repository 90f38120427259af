"""Detection, on environments captured from real launchers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from runner.base.errors import LaunchError
from runner.launch.context import LaunchContext
from runner.launch.detect import detect, is_reporting
from runner.launch.launchers import LAUNCHERS, Launcher
from runner.launch.mislaunch import idle_tasks, refuse_mislaunch
from runner.rendezvous.rendezvous import choose_way
from tests.launching import ROOT

DATA = ROOT / "tests" / "data" / "launchers"

# file: launcher, rank, size, local rank, local size
CAPTURED = {
    "openmpi4": ("openmpi", 1, 4, 1, 4),
    "openmpi5": ("openmpi", 1, 4, 2, 4),
    "mpich": ("mpich", 1, 4, 1, 4),
    "intelmpi": ("intelmpi", 1, 4, 1, 4),
    "torchrun": ("torchrun", 1, 2, 1, 2),
    "torchrun-2.4": ("torchrun", 1, 2, 1, 2),
    "slurm": ("slurm", 3, 4, 1, 2),
    "slurm-uneven": ("slurm", 2, 3, 0, 1),
    "slurm-cyclic": ("slurm", 1, 4, 0, 1),
    "slurm-heterogeneous": ("slurm", 2, 4, 0, 2),
    "slurm-pmi2": ("slurm", 1, 4, 1, 2),
    "slurm-cray": ("slurm", 3, 4, 1, 2),
    "slurm-cray-new": ("slurm", 3, 4, 1, 2),
    "slurm-batch-shell": ("single", 0, 1, 0, 1),
    "slurm-salloc-shell": ("single", 0, 1, 0, 1),
    "slurm-pty-shell": ("slurm", 0, 4, 0, 3),
    "slurm-salloc-srun": ("slurm", 1, 2, 0, 1),
    "openmpi4-in-slurm-batch": ("openmpi", 2, 4, 2, 3),
    "openmpi5-in-slurm-batch": ("openmpi", 2, 4, 2, 3),
    "mpich-in-slurm-batch": ("mpich", 2, 4, 2, 3),
    "openmpi-in-pbs": ("openmpi", 1, 4, 1, 4),
    "container-preset-rank": ("openmpi", 1, 4, 1, 4),
    "pals": ("pals", 3, 4, 1, 2),
    "jsrun": ("jsrun", 3, 4, 1, 2),
    "mvapich2": ("mvapich2", 3, 4, 1, 2),
    "flux": ("flux", 3, 4, 1, None),
    "horovodrun": ("horovodrun", 3, 4, 1, 2),
    "submitit": ("submitit", 1, 2, 1, 2),
    "env": ("env", 1, 2, 1, None),
}


def captured(name: str) -> dict[str, str]:
    lines = (DATA / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


OPENMPI = captured("openmpi4")


def summary(context: LaunchContext) -> tuple[str, int, int, int | None, int | None]:
    local = [value.value if value else None for value in (context.local_rank, context.local_size)]
    return context.launcher.name, context.rank.value, context.size.value, local[0], local[1]


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_environment(name: str) -> None:
    assert summary(detect(captured(name))) == CAPTURED[name]


def test_every_file_and_every_launcher_is_tested() -> None:
    assert {path.stem for path in DATA.glob("*.env")} == set(CAPTURED)
    assert {row.name for row in LAUNCHERS} == {expected[0] for expected in CAPTURED.values()} - {"single"}


def test_each_value_has_its_source() -> None:
    context = detect(captured("slurm"))
    assert context.rank.source == "SLURM_PROCID"
    assert context.size.source == "SLURM_STEP_NUM_TASKS"
    assert context.local_size is not None
    assert context.local_size.source == "SLURM_STEP_TASKS_PER_NODE=2(x2)[1]"


@pytest.mark.parametrize(("node", "tasks"), [("1", "2"), ("2", "1(x2)"), ("1", "1(x2)")])
def test_a_component_of_a_heterogeneous_step_knows_its_own_tasks_only(node: str, tasks: str) -> None:
    """SLURM_NODEID counts the nodes of all components, and newer versions list the tasks of one: no index fits."""
    own = {"SLURM_NODEID": node, "SLURM_STEP_TASKS_PER_NODE": tasks}
    assert summary(detect(captured("slurm-heterogeneous") | own)) == ("slurm", 2, 4, 0, None)


@pytest.mark.parametrize(
    ("name", "ignored"),
    [("openmpi5-in-slurm-batch", ("SLURM_PROCID", "SLURM_NTASKS")), ("container-preset-rank", ("RANK", "WORLD_SIZE"))],
)
def test_what_is_ignored_is_named(name: str, ignored: tuple[str, ...]) -> None:
    assert [one.names for one in detect(captured(name)).ignored] == [ignored]


@pytest.mark.parametrize("name", ["slurm-cray", "slurm-cray-new"])
def test_the_variables_that_srun_sets_as_crays_launcher_does(name: str) -> None:
    """srun --mpi=cray_shasta, the default of many Crays: the ranks may meet by MPI, and its size is Slurm's."""
    context = detect(captured(name))
    assert [(ignored.names, ignored.why) for ignored in context.ignored] == [
        (("PALS_RANKID",), "Slurm srun sets it, too")
    ]
    assert choose_way(context).name == "mpi"
    assert detect(captured(name) | {"PALS_RANKID": "0", "SLURM_PROCID": "0"}).rank.value == 0


def test_crays_own_launcher_in_a_slurm_job() -> None:
    """Its ranks inherit the variables of the batch script, or of the step that runs its daemon on their host."""
    rank_0 = captured("pals") | {"PALS_RANKID": "0", "PMI_RANK": "0", "PALS_LOCAL_RANKID": "0", "PMI_LOCAL_RANK": "0"}
    daemon = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "8"}
    for inherited in (
        captured("slurm-batch-shell"),
        daemon | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "0"},
    ):
        assert summary(detect(inherited | rank_0))[:3] == ("pals", 0, 4)
        assert summary(detect(inherited | captured("pals")))[:3] == ("pals", 3, 4)


def test_a_torchrun_that_serves_no_store_leaves_its_port_to_rank_0() -> None:
    served = {name: detect(captured(name)).has_fresh_store for name in ("torchrun", "torchrun-2.4")}
    assert served == {"torchrun": True, "torchrun-2.4": False}


def test_torchrun_inside_srun_is_torchrun() -> None:
    context = detect(captured("slurm") | captured("torchrun"))
    assert context.launcher.name == "torchrun"
    assert any("Slurm" in ignored.why for ignored in context.ignored)


@pytest.mark.parametrize("launcher", [row for row in LAUNCHERS if row.half_set_is_an_error], ids=lambda row: row.name)
def test_half_a_set_is_refused_and_says_what_is_missing(launcher: Launcher) -> None:
    environment = captured({"openmpi": "openmpi4"}.get(launcher.name, launcher.name))
    missing = next(name for name in environment if name in launcher.size.split("|"))
    del environment[missing]
    with pytest.raises(LaunchError, match=rf"half set.*without .*{missing}") as caught:
        detect(environment)
    assert "single" not in str(caught.value)  # by which each of several ranks would train alone
    assert "unset" not in str(caught.value)


def test_an_endpoint_without_a_rank_is_a_single_process() -> None:
    assert detect({"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}).launcher.name == "single"


def test_mpirun_in_a_task_of_submitit_is_mpirun_and_exported_variables_agree() -> None:
    task = captured("submitit") | {
        "SUBMITIT_LOCAL_GLOBALID": "0",
        "SUBMITIT_LOCAL_NTASKS": "1",
        "SUBMITIT_LOCAL_LOCALID": "0",
    }
    assert summary(detect(task | OPENMPI))[:3] == ("openmpi", 1, 4)
    exported = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert choose_way(detect(captured("submitit") | exported)).name == "env"


def test_two_launchers_at_odds_are_refused_with_both() -> None:
    stale = captured("mpich") | {"PMI_RANK": "0", "PMI_SIZE": "2"}
    with pytest.raises(
        LaunchError, match=r"two launchers disagree: Open MPI says rank 1 of 4 .*, but MPICH says rank 0 of 2"
    ) as caught:
        detect(OPENMPI | stale)
    assert caught.value.fix.endswith("--launcher openmpi or --launcher mpich")
    with pytest.raises(LaunchError) as caught:
        detect(OPENMPI | stale | {"PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"})
    assert caught.value.fix.endswith("this process: --launcher openmpi")
    assert summary(detect(OPENMPI | stale, "mpich"))[:3] == ("mpich", 0, 2)  # an override settles it
    assert detect(OPENMPI, "single").size.value == 1


@pytest.mark.parametrize(
    ("environment", "launcher", "message"),
    [
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "one"}, None, "OMPI_COMM_WORLD_RANK='one' is not a number"),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "4"}, None, "OMPI_COMM_WORLD_RANK=4 is not below OMPI_COMM_WORLD_SIZE=4"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "9"}, None, "LOCAL_RANK=9 is not below"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None, "RANK=1, WORLD_SIZE=4 without MASTER_ADDR, MASTER_PORT"),
        ({}, "slurm", "Slurm srun is half set.*SLURM_PROCID"),
        ({}, "slrum", "one of: torchrun, horovodrun"),
    ],
)
def test_what_makes_no_rank_is_refused(environment: dict[str, str], launcher: str | None, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        detect(environment, launcher)


def test_one_rank_speaks_before_ranks_are_known() -> None:
    assert not is_reporting(OPENMPI)
    assert is_reporting(OPENMPI | {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"})
    assert is_reporting({})
    assert is_reporting(captured("slurm-batch-shell") | {"SLURM_PROCID": "0"})


def test_jobs_have_names_of_their_own() -> None:
    names = [detect(captured(name)).job_id for name in ("openmpi4", "openmpi5", "slurm", "intelmpi", "torchrun")]
    assert None not in names
    assert len(set(names)) == len(names)


def test_hosts_from_the_scheduler() -> None:
    assert detect(captured("slurm")).hosts == ["node1", "node2"]
    assert detect(captured("openmpi5-in-slurm-batch")).hosts == ["node1", "node2"]
    # On the second host the ranks inherit the variables of the step that runs Open MPI's daemon there.
    daemon = {"SLURM_STEP_NODELIST": "node2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert detect(captured("openmpi4-in-slurm-batch") | daemon).hosts == ["node1", "node2"]


@pytest.mark.parametrize(
    ("environment", "tasks"),
    [
        (captured("slurm-batch-shell"), 4),
        ({"SLURM_JOB_ID": "8", "SLURM_JOB_NUM_NODES": "2"}, 2),  # sbatch --nodes=2, and no number of tasks
        ({"PBS_JOBID": "8.server", "PBS_NODEFILE": "nodes"}, 3),
        ({"LSB_JOBID": "8", "LSB_DJOB_NUMPROC": "16"}, 16),
        ({}, None),
        (captured("slurm"), None),
        (captured("openmpi4-in-slurm-batch"), None),
        (captured("openmpi-in-pbs"), None),
        (captured("slurm-batch-shell") | captured("torchrun"), None),
        ({"SLURM_JOB_ID": "8", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}, None),
        ({"PBS_JOBID": "8.server", "PBS_NODEFILE": "/nowhere"}, None),
    ],
)
def test_tasks_of_a_job_that_one_process_leaves_unused(
    environment: dict[str, str], tasks: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes").write_text("node1\nnode1\nnode2\n")
    found = idle_tasks(detect(environment))
    assert found.startswith(f"this job has {tasks} tasks and one process runs; start with ") if tasks else not found
    assert tasks is None or not idle_tasks(detect(environment, "single"))


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        ("openmpi4", "Open MPI started 4 torchruns (OMPI_COMM_WORLD_SIZE).*mpirun … python -m runner"),
        ("intelmpi", "Intel MPI started 4 torchruns (PMI_SIZE)"),
        ("slurm", "Slurm srun started 4 torchruns (SLURM_STEP_NUM_TASKS).*srun … python -m runner"),
    ],
)
def test_torchruns_that_do_not_know_of_each_other(outer: str, expected: str) -> None:
    alone = captured(outer) | captured("torchrun")
    with pytest.raises(LaunchError, match=expected.replace("(", "\\(").replace(")", "\\)")) as caught:
        refuse_mislaunch(detect(alone))
    assert caught.value.on_all_ranks
    refuse_mislaunch(detect(alone, "torchrun"))
    refuse_mislaunch(detect(alone | {"GROUP_WORLD_SIZE": "4"}))


PBS = {"PBS_JOBID": "7.server", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "/nowhere/7.server"}
LSF = {"LSB_JOBID": "8", "LSB_DJOB_NUMPROC": "2"}


@pytest.mark.parametrize(
    ("environment", "starter"),
    [
        (PBS | {"PBS_TASKNUM": "3", "PBS_NODENUM": "0"}, "pbsdsh (PBS_TASKNUM=3)"),
        (PBS | {"PBS_TASKNUM": "1", "PBS_NODENUM": "1"}, "pbsdsh (PBS_NODENUM=1)"),
        (LSF | {"LSF_PM_TASKID": "1"}, "blaunch (LSF_PM_TASKID=1)"),
        (captured("slurm-batch-shell") | {"SLURM_PROCID": "3"}, "srun (SLURM_PROCID=3)"),
        (PBS | {"ALPS_APP_PE": "0"}, "aprun (ALPS_APP_PE=0)"),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "a@1"}, "PMIx launcher (PMIX_RANK=1)"),
        ({"PMI_RANK": "0", "PMI_FD": "7"}, "launcher (PMI_RANK=0)"),
        ({"MPIRUN_RANK": "0", "MPIRUN_NPROCS": "2"}, "mpirun_rsh (MPIRUN_RANK=0)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_copies_without_a_rank_are_refused(environment: dict[str, str], starter: str) -> None:
    with pytest.raises(LaunchError) as caught:
        refuse_mislaunch(detect(environment))
    assert f"{starter} started this process" in str(caught.value)
    assert "single" not in str(caught.value)
    refuse_mislaunch(detect(environment, "single"))
    refuse_mislaunch(detect(environment | OPENMPI))  # pbsdsh and blaunch start MPI's daemons, too


def test_copies_on_other_hosts_of_the_job(tmp_path: Path) -> None:
    """What ssh, pdsh or parallel start there with the job's variables; the first host has the batch script."""
    own, nodes = socket.gethostname(), tmp_path / "nodes"
    slurm = {"SLURM_JOB_ID": "8", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": f"other,{own}"}
    for environment in (
        slurm,
        slurm | {"SLURMD_NODENAME": "other"},
        {"PBS_JOBID": "8.server", "PBS_NODEFILE": str(nodes)},
        {"LSB_JOBID": "8", "LSB_DJOB_HOSTFILE": str(nodes)},
        {"OAR_JOB_ID": "8", "OAR_NODEFILE": str(nodes)},
    ):
        nodes.write_text(f"other.cluster\n{own}.cluster\n")
        with pytest.raises(LaunchError, match="a command on another of the job's 2 hosts started this process"):
            refuse_mislaunch(detect(environment))
        nodes.write_text(f"{own}.cluster\nother.cluster\n")
        refuse_mislaunch(detect(environment | {"SLURMD_NODENAME": own}))
        nodes.write_text(f"{own}\n{own}\n")
        refuse_mislaunch(detect(environment | {"SLURM_JOB_NODELIST": own}))


@pytest.mark.parametrize(
    "environment",
    [
        PBS | {"PBS_TASKNUM": "1", "PBS_NODENUM": "0"},
        LSF,
        LSF | {"LSF_PM_TASKID": "1", "LSB_DJOB_NUMPROC": "1"},
        captured("slurm-batch-shell"),
        captured("slurm-salloc-shell"),
        captured("slurm-batch-shell") | captured("torchrun"),
        captured("slurm-salloc-shell") | captured("torchrun"),
        {"MPIRUN_RANK": "0", "MPIRUN_NPROCS": "1"},
    ],
)
def test_a_batch_scripts_one_process_is_no_copy(environment: dict[str, str]) -> None:
    refuse_mislaunch(detect(environment))


def test_an_elastic_job_is_refused() -> None:
    """Its survivors would continue after a failure, which ends a job here. The variable is of horovod/runner/gloo_run.py."""
    elastic = captured("horovodrun") | {"HOROVOD_ELASTIC": "1"}
    with pytest.raises(LaunchError, match="elastic jobs are not supported: horovodrun") as raised:
        refuse_mislaunch(detect(elastic))
    assert raised.value.on_all_ranks  # one line
    refuse_mislaunch(detect(elastic, "horovodrun"))
    refuse_mislaunch(detect(captured("horovodrun")))
