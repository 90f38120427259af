"""A command on some of its hosts. tests/cluster/test_spares.py lets the launchers judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.tools.supervise.command_hosts import read_hosts
from tests.launching import mpirun_path

MPIRUN = mpirun_path()  # Open MPI's


def command(line: str, *left_out: str, spares: int = 0, folder: Path = Path(), **environment: str) -> str:
    """The words for the hosts that are left, the launcher's own not counted."""
    words = line.replace("mpirun", MPIRUN, 1).split()
    hosts = read_hosts(words, environment, spares)
    return " ".join(hosts.command(hosts.without(left_out), folder / "hosts")[1:])


@pytest.mark.parametrize(
    ("line", "left_out", "spares", "becomes"),
    [
        ("mpirun --host a:4,b:4 -np 8 --bind-to none python", ["b"], 0, "--host a:4 -np 4 --bind-to none python"),
        ("mpirun -H a:2,b:2,c:2 -n 4 python", [], 1, "-H a:2,b:2 -np 4 python"),
        ("mpirun -H a:2,b:2,c:2 -n 4 python", ["a"], 1, "-H b:2,c:2 -np 4 python"),
        ("mpirun -H a:2,b:2,c:2 -n 4 python", ["c", "a"], 1, "-H b:2 -np 2 python"),
        ("mpirun --host=a,a,a,b -np 4 python", ["b"], 0, "--host a,a,a -np 3 python"),
        ("mpirun --host a,b --map-by ppr:2:node python", ["a"], 0, "--host b --map-by ppr:2:node python"),
        ("mpirun --host a.site.org:1,b.site.org:1 -np 2 python", ["a"], 0, "--host b.site.org:1 -np 1 python"),
        ("srun -w n[1-3] -N3 -n12 python", ["n2"], 0, "-w n1,n3 --nodes 2 --ntasks 8 python"),
        ("srun --nodelist=n[1-3] -n 4 python", [], 1, "--nodes 2 --nodelist n1,n2 --ntasks 4 python"),
        ("srun -wn[1-2] -n2 python", ["n1"], 0, "--nodes 1 -w n2 --ntasks 1 python"),
    ],
)
def test_a_list_of_hosts(line: str, left_out: list[str], spares: int, becomes: str) -> None:
    assert command(line, *left_out, spares=spares) == becomes


def test_a_file_of_hosts(tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text("# rack 1\na slots=3 max_slots=9\n\nuser@b slots=1  # small\nc slots=4\n")
    new = tmp_path / "new" / "hosts"
    line = f"mpirun --hostfile {file} -np 8 python"
    assert command(line, folder=new.parent) == f"--hostfile {new} -np 8 python"
    assert new.read_text() == "a slots=3 max_slots=9\nuser@b slots=1\nc slots=4\n"
    assert command(line, "b", "c", folder=new.parent) == f"--hostfile {new} -np 3 python"
    assert new.read_text() == "a slots=3 max_slots=9\n"


def test_the_hosts_of_a_job(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "4(x3)", "SLURM_NTASKS": "12"}
    assert command("mpirun -np 8 python", "n1", spares=1, **slurm) == "--host n2:4,n3:4 -np 8 python"
    srun = "--nodes {nodes} --ntasks {ranks} --nodelist {hosts} python"
    assert command("srun python", "n1", spares=1, **slurm) == srun.format(nodes=2, ranks=8, hosts="n2,n3")
    assert command("srun -n 8 python", "n1", "n2", spares=1, **slurm) == "--nodes 1 --nodelist n3 --ntasks 4 python"
    (file := tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    assert command("mpirun -np 4 python", "n1", PBS_NODEFILE=str(file)) == "--host n2:2 -np 2 python"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("torchrun --nnodes 2", "cannot choose the hosts of torchrun; begin the command with mpirun, mpiexec or srun"),
        ("", "cannot choose the hosts of no launcher;"),
        ("mpirun -np 2 python", "the command names no hosts, and this is no Slurm or PBS job; name the hosts"),
        ("mpirun --host a,b --host c -np 2 python", "has --host and --host; give it one of them"),
        ("mpirun --host a,b -np 1 x : -np 1 y", "the command has several, with a colon; start one program"),
        ("mpirun --host a,b -np x", "-np x is no number of ranks"),
        ("mpirun --host a,/b -np 2", "'/b' is no host; name hosts as a:4"),
        ("mpirun --hostfile /nothing -np 2", "cannot read the hosts in /nothing: No such file"),
        ("mpirun --host a -np 2", "--spares 1 leaves none of the hosts a; name more hosts"),
        ("srun -w n[1 -n 2", "'n.1' is not a host list like node.*; name hosts as"),
        ("srun -w a,b --exclude=c", "do not go with srun --exclude; name the hosts that may be used"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command(line, spares=1)
