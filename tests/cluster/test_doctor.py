"""Each of the doctor's checks, on a cluster where what it looks for is really so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.launchers import BIN, DEBIAN_MPIRUN, LAUNCHERS, PREFIXES
from tests.cluster.virtual import Cluster, cluster
from tests.launching import RUNNER, ok

TORCH = Path(
    subprocess.run(
        [RUNNER[0], "-c", "import torch; print(torch.__path__[0])"], capture_output=True, text=True
    ).stdout.strip()
)


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster(3, slurm=True, networks=2) as made:
        yield made


def doctor(
    vc: Cluster, only: str, *, launcher: str = "srun", slots: Sequence[int] = (1, 1), wrapper: Sequence[str] = ()
) -> dict[str, dict[str, str]]:
    """The checks by name. The wrapper is a command before Python's, the same on every rank."""
    done = LAUNCHERS[launcher](vc, slots, [*wrapper, *RUNNER, "doctor", "--json", "--only", only])
    assert done.stdout.startswith("{"), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    checks: dict[str, dict[str, str]] = {check["name"]: check for check in report["checks"]}
    assert set(only.lower().split(",")) <= {check.lower() for check in checks}
    failed = any(check["status"] == "fail" for check in checks.values())
    assert (done.returncode != 0) == failed, done.stderr
    return checks


def on(host: str, script: str) -> list[str]:
    """A wrapper that does something on one host, in file systems of its own, before the program starts."""
    return [
        "unshare",
        "--mount",
        "bash",
        "-c",
        f'set -e; if [ "$(hostname)" = {host} ]; then {script}; fi; exec "$@"',
        "bash",
    ]


def other_torch(folder: Path, version: str) -> str:
    """A PYTHONPATH with the installed torch, whose version.py is another."""
    farm = folder / "torch"
    farm.mkdir(parents=True, exist_ok=True)
    for entry in TORCH.iterdir():
        if entry.name not in ("version.py", "__pycache__") and not (farm / entry.name).exists():
            (farm / entry.name).symlink_to(entry)
    (farm / "version.py").write_text(version)
    return str(folder)


def test_all_is_well(vc: Cluster) -> None:
    """The whole of it, under an mpirun over two hosts."""
    done = ok(LAUNCHERS["mpich"](vc, [1, 1], [*RUNNER, "doctor", "--json"]))
    report = json.loads(done.stdout)
    assert [host["name"] for host in report["hosts"]] == ["node1", "node2"]
    found = {check["name"]: check["status"] for check in report["checks"]}
    assert len(found) == 19
    assert "fail" not in found.values()
    for name in (
        "launcher",
        "ranks",
        "versions",
        "host names",
        "reach",
        "clocks",
        "working folder",
        "torch",
        "allreduce",
    ):
        assert found[name] == "ok", report["checks"]


@pytest.mark.parametrize("launcher", ["openmpi4", "torchrun", "srun-torchrun"])
def test_under_other_launchers(vc: Cluster, launcher: str) -> None:
    found = doctor(vc, "launcher,ranks,reach,clocks", launcher=launcher)
    assert {check["status"] for check in found.values()} == {"ok"}, found


def test_an_mpi_library_of_another_mpirun(vc: Cluster) -> None:
    """Other targets are refused; the doctor's ranks meet without MPI, and say it."""
    library = ["env", f"MPI4PY_LIBMPI={BIN.parent}/lib/libmpi.so.40"]
    found = doctor(vc, "launcher,reach", launcher="mpich", slots=[2], wrapper=library)
    assert found["launcher"]["status"] == "fail"
    assert "mpi4py loaded Open MPI" in found["launcher"]["detail"]
    assert found["launcher"]["fix"] == f"set MPI4PY_LIBMPI={PREFIXES}/mpich/lib/libmpi.so.12"
    assert found["reach"]["status"] == "ok"


def test_uneven_slots(vc: Cluster) -> None:
    found = doctor(vc, "ranks", slots=[3, 1])["ranks"]
    assert found["status"] == "warn"
    assert "3 on node1, 1 on node2: uneven" in found["detail"]


def test_a_host_without_a_rank(vc: Cluster) -> None:
    """mpirun fills one host after the other, and -np is smaller than the job."""
    mpirun = [DEBIAN_MPIRUN, "--mca", "oob_tcp_if_include", "eth0", "-np", "2"]
    command = [
        "salloc",
        "-Q",
        "--nodes=2",
        "--ntasks-per-node=2",
        *mpirun,
        *RUNNER,
        "doctor",
        "--json",
        "--only",
        "ranks",
    ]
    done = ok(vc.run("node1", command))
    found = json.loads(done.stdout)["checks"][0]
    assert found["status"] == "warn"
    assert "1 of them without a rank" in found["detail"]


def test_another_torch_on_one_rank(vc: Cluster) -> None:
    path = other_torch(vc.folder / "older", "__version__ = '2.9.1'\n")
    found = doctor(vc, "versions", wrapper=on("node2", f"export PYTHONPATH={path}"))["versions"]
    assert found["status"] == "fail"
    assert "2.9.1 on rank 1 (node2)" in found["detail"]


def test_settings_that_differ(vc: Cluster) -> None:
    found = doctor(vc, "settings", wrapper=on("node2", "export OMP_NUM_THREADS=3"))["settings"]
    assert (found["status"], "3 on rank 1 (node2)" in found["detail"]) == ("warn", True)


def test_a_name_that_resolves_to_127(vc: Cluster) -> None:
    """Debian's installer writes such a line. The ranks must not take the loopback interface for it, either."""
    line = (
        "echo '127.0.1.1 node1' > hosts.new; grep -v node1 /etc/hosts >> hosts.new; mount --bind hosts.new /etc/hosts"
    )
    found = doctor(vc, "host names,reach,allreduce", wrapper=on("node1", line))
    assert found["host names"]["status"] == "warn"
    assert "node1 is 127.0.1.1 to itself" in found["host names"]["detail"]
    assert found["reach"]["status"] == found["allreduce"]["status"] == "ok"


def test_a_name_that_does_not_resolve(vc: Cluster) -> None:
    found = doctor(vc, "host names", wrapper=["unshare", "--uts", *on("node2", "hostname ghost")])["host names"]
    assert found["status"] == "warn"
    assert "ghost does not resolve on that host itself" in found["detail"]


def test_a_check_that_hangs_is_one_line(vc: Cluster) -> None:
    """A name server that never answers, on one host, and a host whose name is left to it."""
    silent = "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 53)); time.sleep(60)"
    server = subprocess.Popen(vc.command("node1", [RUNNER[0], "-c", silent]))
    try:
        resolver = f"nameserver {vc.address('node1')}\\noptions timeout:30 attempts:1\\n"
        script = f"printf '{resolver}' > resolv.new; mount --bind resolv.new /etc/resolv.conf; hostname ghost.nowhere"
        found = doctor(vc, "host names,clocks", wrapper=["unshare", "--uts", *on("node2", script)])
    finally:
        server.terminate()
        server.wait()
    assert found["host names"]["status"] == "fail"
    assert "rank 1 (ghost.nowhere): not done after 8 s" in found["host names"]["detail"]
    assert found["clocks"]["status"] == "ok"


def test_hosts_that_do_not_reach_each_other(three: Cluster) -> None:
    """node2 and node3 both reach rank 0, so they meet; but gloo's connections are among all."""
    three.network("-n", "node2", "route", "add", "unreachable", f"{three.address('node3')}/32")
    try:
        found = doctor(three, "reach,clocks,allreduce", slots=[1, 1, 1])
    finally:
        three.network("-n", "node2", "route", "delete", "unreachable", f"{three.address('node3')}/32")
    assert found["reach"]["status"] == "fail"
    assert "rank 1 (node2) does not reach rank 2 (node3) on eth0" in found["reach"]["detail"]
    assert found["clocks"]["status"] == "ok"
    assert found["allreduce"]["status"] == "fail"  # by an error of gloo's, which is not the end


def test_an_interface_that_leads_nowhere(three: Cluster) -> None:
    three.network("-n", "switch", "link", "set", "node2-1", "down")
    try:
        found = doctor(three, "reach", slots=[1, 1, 1])["reach"]
    finally:
        three.network("-n", "switch", "link", "set", "node2-1", "up")
    assert found["status"] == "warn"
    assert "by eth0; but rank 1 (node2) does not reach rank 0 (node1) on eth1" in found["detail"]
    assert "btl_tcp_if_include eth0" in found["fix"]


def test_an_interface_of_the_users_that_is_not_there(vc: Cluster) -> None:
    found = doctor(vc, "reach", wrapper=["env", "GLOO_SOCKET_IFNAME=ib0"])["reach"]
    assert found["status"] == "fail"
    assert "has no address on ib0" in found["detail"]


def test_on_one_host_the_users_interface_is_as_good_as_loopback(vc: Cluster) -> None:
    found = doctor(vc, "reach,clocks", slots=[2], wrapper=["env", "GLOO_SOCKET_IFNAME=eth0"])
    assert {check["status"] for check in found.values()} == {"ok"}, found
    assert "by eth0" in found["reach"]["detail"]


def test_local_ranks_in_another_order(vc: Cluster) -> None:
    """Open MPI 5 numbers them so; here it is done by hand."""
    swapped = ["bash", "-c", 'export RANK=$SLURM_PROCID LOCAL_RANK=$((1 - SLURM_LOCALID)); exec "$@"', "bash", "env"]
    gone = [f"--unset=SLURM_{name}" for name in ("PROCID", "STEP_ID", "LOCALID")]
    by_hand = ["WORLD_SIZE=2", f"MASTER_ADDR={vc.address('node1')}", f"MASTER_PORT={vc.free_port('node1')}"]
    found = doctor(vc, "host names,clocks,working folder", slots=[2], wrapper=[*swapped, *gone, *by_hand])
    assert {check["status"] for check in found.values()} == {"ok"}, found


@pytest.mark.parametrize(("shift", "status"), [("-30s", "warn"), ("+10m", "fail")])
def test_a_clock_that_is_wrong(vc: Cluster, shift: str, status: str) -> None:
    found = doctor(vc, "clocks", wrapper=on("node2", f'exec faketime -f {shift} "$@"'))["clocks"]
    assert found["status"] == status
    text = "30 s behind" if status == "warn" else "600 s ahead of"
    assert found["detail"] == f"rank 1 (node2) is {text} rank 0"


def test_a_rank_bound_to_one_core(vc: Cluster) -> None:
    found = doctor(vc, "cores", launcher="openmpi4", wrapper=["taskset", "-c", "0"])["cores"]
    assert found["status"] == "warn"
    assert "1 of 2 cores" in found["detail"]
    assert found["fix"] == "start with mpirun --bind-to none"


def test_more_threads_or_ranks_than_cores(vc: Cluster) -> None:
    found = doctor(vc, "cores", wrapper=["env", "OMP_NUM_THREADS=16"])["cores"]
    assert (found["status"], found["fix"]) == ("warn", "unset OMP_NUM_THREADS, or set it to 2")
    assert found["detail"].startswith("16 threads on 2 cores of node1")
    found = doctor(vc, "cores", slots=[3, 3])["cores"]
    assert (found["status"], found["detail"]) == ("warn", "3 ranks share 2 cores on node1")


def test_cores_of_two_numa_nodes(vc: Cluster) -> None:
    """The kernel's own view of this machine has one node, so two are laid over it, a core each."""
    nodes = "for n in 0 1; do mkdir -p nodes/node$n; echo $n > nodes/node$n/cpulist; done; "
    found = doctor(
        vc, "NUMA", slots=[2, 2], wrapper=on("node2", f"{nodes} mount --bind nodes /sys/devices/system/node")
    )
    assert found["NUMA"]["status"] == "warn"
    assert found["NUMA"]["detail"].startswith("ranks 2-3 (node2): cores of 2 NUMA nodes")
    assert "--cpu-bind=ldoms" in found["NUMA"]["fix"]


@pytest.mark.parametrize(("kib", "status"), [(1500 * 1024, "warn"), (200 * 1024, "fail")])
def test_little_memory(vc: Cluster, kib: int, status: str) -> None:
    """As a container's own /proc/meminfo would say."""
    change = (
        f"sed 's/^MemAvailable:.*/MemAvailable: {kib} kB/' /proc/meminfo > mem.new; mount --bind mem.new /proc/meminfo"
    )
    found = doctor(vc, "memory", wrapper=on("node2", change))["memory"]
    assert found["status"] == status
    assert "per rank free on node2" in found["detail"]


@pytest.mark.parametrize(("size", "status"), [("64m", "warn"), ("4m", "fail")])
def test_little_shared_memory(vc: Cluster, size: str, status: str) -> None:
    found = doctor(vc, "shared memory", wrapper=on("node2", f"mount -t tmpfs -o size={size} none /dev/shm"))
    assert found["shared memory"]["status"] == status
    assert "node2" in found["shared memory"]["detail"]


def test_low_limits(vc: Cluster) -> None:
    found = doctor(vc, "limits", wrapper=on("node2", "ulimit -n 256"))["limits"]
    assert (found["status"], found["detail"]) == ("warn", "256 open files on rank 1 (node2)")
    assert "ulimit -n 1280" not in found["fix"]
    assert "the hard limit is 256" in found["fix"]
    found = doctor(vc, "limits", wrapper=on("node1", "ulimit -v 100000000"))["limits"]
    assert (found["status"], found["detail"]) == ("warn", "95 GiB of address space on rank 0 (node1)")


def test_a_working_folder_that_is_not_shared(vc: Cluster) -> None:
    folder = vc.folder / "own-disk"
    folder.mkdir(exist_ok=True)
    own_disk = f'if [ "$(hostname)" = node2 ]; then mount -t tmpfs none {folder}; fi; cd {folder}; exec "$@"'
    wrapper = ["unshare", "--mount", "bash", "-c", own_disk, "bash"]
    found = doctor(vc, "working folder", wrapper=wrapper)["working folder"]
    assert found["status"] == "fail"
    assert f"node2 does not see what rank 0 writes in {folder}" in found["detail"]
    elsewhere = doctor(vc, "working folder", wrapper=on("node2", "cd /"))["working folder"]
    assert (elsewhere["status"], "node2 works in /" in elsewhere["detail"]) == ("fail", True)
    read_only = doctor(vc, "working folder", wrapper=on("node1", f"mount -t tmpfs -o ro none {folder}; cd {folder}"))
    assert read_only["working folder"]["status"] == "fail"  # node2 works elsewhere then
    both = ["unshare", "--mount", "bash", "-c", f'mount -t tmpfs -o ro none {folder}; cd {folder}; exec "$@"', "bash"]
    closed = doctor(vc, "working folder", wrapper=both)["working folder"]
    assert (closed["status"], "Read-only file system on node1" in closed["detail"]) == ("warn", True)
    assert not list(folder.iterdir())


def test_a_torch_that_does_not_load(vc: Cluster) -> None:
    """On one rank: what needs torch fails in a line each, and the rest is done."""
    path = other_torch(vc.folder / "broken", "raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    found = doctor(vc, "torch,GPUs,allreduce", wrapper=on("node2", f"export PYTHONPATH={path}"))
    assert found["torch"]["status"] == found["allreduce"]["status"] == "fail"
    assert "rank 1 (node2): ImportError: libcudart.so.13" in found["torch"]["detail"]
    assert found["GPUs"]["status"] == "ok"


def test_gpus_that_are_promised_and_not_there(vc: Cluster) -> None:
    found = doctor(vc, "GPUs", wrapper=on("node2", "export CUDA_VISIBLE_DEVICES=0,1"))["GPUs"]
    assert found["status"] == "warn"
    assert "CUDA_VISIBLE_DEVICES=0,1 on rank 1 (node2), but no GPU" in found["detail"]


def test_a_horovod_that_does_not_load(vc: Cluster) -> None:
    """Built against a library that is not there any more: the commonest way in which an installed Horovod is none."""
    package = vc.folder / "horovod-broken" / "horovod"
    (package / "torch").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("__version__ = '0.28.1'\n")
    (package / "torch" / "__init__.py").write_text("import ctypes\nctypes.CDLL('libmpi_cxx.so.20')\n")
    found = doctor(vc, "Horovod", wrapper=on("node2", f"export PYTHONPATH={package.parent}"))["Horovod"]
    assert found["status"] == "warn"
    assert "does not load on rank 1 (node2): OSError: libmpi_cxx.so.20" in found["detail"]


def limited(vc: Cluster, host: str) -> None:
    shaper = ["qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "32kbit", "latency", "400ms"]
    subprocess.run(["tc", "-n", vc.prefix + host, *shaper], check=True)


def freed(vc: Cluster, host: str) -> None:
    subprocess.run(["tc", "-n", vc.prefix + host, "qdisc", "delete", "dev", "eth0", "root"], check=True)


def test_a_slow_link(vc: Cluster) -> None:
    limited(vc, "node2")
    try:
        found = doctor(vc, "allreduce,links")
    finally:
        freed(vc, "node2")
    assert found["allreduce"]["status"] == "warn"
    assert found["links"]["status"] == "warn"
    assert "rank 0 (node1) – rank 1 (node2)" in found["links"]["detail"]


def test_a_slow_host(three: Cluster) -> None:
    limited(three, "node2")
    try:
        found = doctor(three, "allreduce,links", slots=[1, 1, 1])
    finally:
        freed(three, "node2")
    assert found["links"]["status"] == "warn"
    assert found["links"]["detail"].startswith("rank 1 (node2): ")


def test_what_a_check_needs_is_done_before(vc: Cluster) -> None:
    assert list(doctor(vc, "links")) == ["torch", "allreduce", "links"]


def test_the_table_says_what_to_do(vc: Cluster) -> None:
    done = ok(LAUNCHERS["srun"](vc, [3, 1], [*RUNNER, "doctor", "--only", "ranks,clocks"]))
    assert "ranks   warn  4: 3 on node1, 1 on node2: uneven" in done.stdout
    assert "→ srun --ntasks-per-node=1" in done.stdout
    assert "1 ok, 1 warn, 0 fail; 4 ranks on 2 hosts" in done.stdout


def test_a_check_that_is_none(vc: Cluster) -> None:
    done = LAUNCHERS["srun"](vc, [1, 1], [*RUNNER, "doctor", "--only", "weather"])
    assert done.returncode != 0
    assert "no check 'weather'; there are launcher, ranks" in done.stderr
