"""Each of the doctor's checks, on a cluster where what it looks for is really so."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.launchers import BIN, DEBIAN_MPIRUN, LAUNCHERS, PREFIXES
from tests.cluster.virtual import Cluster, cluster
from tests.launching import RUNNER, ok

TORCH = Path(str(find_spec("torch").origin)).parent  # type: ignore[union-attr]  # it is installed


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster(3, slurm=True, networks=2) as made:
        yield made


def doctor(
    vc: Cluster,
    only: str,
    *,
    launcher: str = "srun",
    slots: Sequence[int] = (1, 1),
    wrapper: Sequence[str] = (),
    bind: str = "auto",
) -> dict[str, dict[str, str]]:
    """The checks by name. The wrapper is a command before Python's, the same on every rank."""
    done = LAUNCHERS[launcher](vc, slots, [*wrapper, *RUNNER, f"--bind={bind}", "doctor", "--json", "--only", only])
    assert done.stdout.startswith("{"), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    checks: dict[str, dict[str, str]] = {check["name"]: check for check in report["checks"]}
    assert set(only.lower().split(",")) <= {check.lower() for check in checks}
    failed = any(check["status"] == "fail" for check in checks.values())
    assert (done.returncode != 0) == failed, done.stderr
    return checks


def on(host: str, script: str) -> list[str]:
    """A wrapper that does something on one host, in file systems of its own, before the program starts."""
    condition = f'set -e; if [ "$(hostname)" = {host} ]; then {script}; fi; exec "$@"'
    return ["unshare", "--mount", "bash", "-c", condition, "bash"]


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
    right = ["launcher", "ranks", "versions", "host names", "reach", "clocks", "working folder", "torch", "allreduce"]
    assert {found[name] for name in right} == {"ok"}, report["checks"]


def test_under_torchrun(vc: Cluster) -> None:
    found = doctor(vc, "launcher,ranks,reach,clocks", launcher="torchrun")
    assert {check["status"] for check in found.values()} == {"ok"}, found


def test_an_mpi_library_of_another_mpirun(vc: Cluster) -> None:
    """Other targets are refused; the doctor's ranks meet without MPI, and say it."""
    library = ["env", f"MPI4PY_LIBMPI={BIN.parent}/lib/libmpi.so.40"]
    found = doctor(vc, "launcher,reach", launcher="mpich", slots=[2], wrapper=library)
    assert found["launcher"]["status"] == "fail"
    assert "mpi4py loaded Open MPI" in found["launcher"]["detail"]
    assert found["launcher"]["fix"] == f"set MPI4PY_LIBMPI={PREFIXES}/mpich/lib/libmpi.so.12"
    assert found["reach"]["status"] == "ok"


def memory_of(mib: int) -> str:
    """Lay over /proc/meminfo one as that of a container may be."""
    change = f"sed 's/^MemAvailable:.*/MemAvailable: {1024 * mib} kB/' /proc/meminfo > mem.new"
    return f"{change}; mount --bind mem.new /proc/meminfo"


# The kernel's own view of this machine has one NUMA node, so two are laid over it, a core each.
NUMA = "for n in 0 1; do mkdir -p nodes/node$n; echo $n > nodes/node$n/cpulist; done; "
NUMA += "mount --bind nodes /sys/devices/system/node"
SHARED_MEMORY = "mount -t tmpfs none /dev/shm -o size"
# A wrapper, how it is launched, and what its checks say: several wrongs of a host are found in one launch.
FOUND: list[tuple[list[str], dict[str, Any], dict[str, tuple[str, str]]]] = [
    (
        on(
            "node2",
            f"export OMP_NUM_THREADS=3 CUDA_VISIBLE_DEVICES=0,1; ulimit -n 256; {SHARED_MEMORY}=64m; {memory_of(1500)}; "
            'exec faketime -f -30s "$@"',
        ),
        {},
        {
            "settings": ("warn", r"3 on rank 1 \(node2\)"),
            "GPUs": ("warn", r"CUDA_VISIBLE_DEVICES=0,1 on rank 1 \(node2\), but no GPU"),
            "limits": ("warn", r"^256 open files on rank 1 \(node2\) → (?!.*ulimit -n 1280).*the hard limit is 256"),
            "shared memory": ("warn", r"node2.*→"),
            "memory": ("warn", r"per rank free on node2"),
            "clocks": ("warn", r"^rank 1 \(node2\) is 30 s behind rank 0 →"),
        },
    ),
    (
        [
            *on("node1", "ulimit -v 100000000"),
            *on("node2", f'{SHARED_MEMORY}=4m; {memory_of(200)}; exec faketime -f +10m "$@"'),
        ],
        {},
        {
            "limits": ("warn", r"^95 GiB of address space on rank 0 \(node1\) →"),
            "shared memory": ("fail", r"node2.*→"),
            "memory": ("fail", r"per rank free on node2"),
            "clocks": ("fail", r"^rank 1 \(node2\) is 600 s ahead of rank 0 →"),
        },
    ),
    (
        [],
        {"slots": [3, 1]},
        {"ranks": ("warn", r"3 on node1, 1 on node2: uneven"), "cores": ("warn", r"^3 ranks share 2 cores on node1 →")},
    ),
    (
        ["unshare", "--uts", *on("node2", "hostname ghost")],
        {},
        {"host names": ("warn", r"ghost does not resolve on that host itself")},
    ),
    (["env", "GLOO_SOCKET_IFNAME=ib0"], {}, {"reach": ("fail", r"has no address on ib0")}),
    (
        ["taskset", "-c", "0"],
        {"launcher": "openmpi4"},
        {"cores": ("warn", r"1 of 2 cores.*→ start with mpirun --bind-to none$")},
    ),
    (
        ["env", "OMP_NUM_THREADS=16"],
        {},
        {"cores": ("warn", r"^16 threads on 2 cores of node1.*→ unset OMP_NUM_THREADS, or set it to 2$")},
    ),
    (
        on("node2", NUMA),
        {"slots": [2, 2], "bind": "none"},
        {"NUMA": ("warn", r"^ranks 2-3 \(node2\): cores of 2 NUMA nodes.*→.*--cpu-bind=ldoms")},
    ),
]


@pytest.mark.parametrize(("wrapper", "launch", "wrong"), FOUND)
def test_what_is_wrong_on_a_host(
    vc: Cluster, wrapper: list[str], launch: dict[str, Any], wrong: dict[str, tuple[str, str]]
) -> None:
    found = doctor(vc, ",".join(wrong), wrapper=wrapper, **launch)
    for check, (status, shown) in wrong.items():
        assert found[check]["status"] == status, found
        assert re.search(shown, f"{found[check]['detail']} → {found[check].get('fix')}"), found


def test_a_host_without_a_rank(vc: Cluster) -> None:
    """mpirun fills one host after the other, and -np is smaller than the job."""
    mpirun = [DEBIAN_MPIRUN, "--mca", "oob_tcp_if_include", "eth0", "-np", "2"]
    job = ["salloc", "-Q", "--nodes=2", "--ntasks-per-node=2", *mpirun, *RUNNER]
    done = ok(vc.run("node1", [*job, "doctor", "--json", "--only", "ranks"]))
    found = json.loads(done.stdout)["checks"][0]
    assert found["status"] == "warn"
    assert "1 of them without a rank" in found["detail"]


def test_a_name_that_resolves_to_127(vc: Cluster) -> None:
    """Debian's installer writes such a line. The ranks must not take the loopback interface for it, either."""
    line = (
        "echo '127.0.1.1 node1' > hosts.new; grep -v node1 /etc/hosts >> hosts.new; mount --bind hosts.new /etc/hosts"
    )
    found = doctor(vc, "host names,reach,allreduce", wrapper=on("node1", line))
    assert found["host names"]["status"] == "warn"
    assert "node1 is 127.0.1.1 to itself" in found["host names"]["detail"]
    assert found["reach"]["status"] == found["allreduce"]["status"] == "ok"


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


def test_other_packages_on_one_rank(vc: Cluster) -> None:
    """Another torch, and a Horovod built against a library that is not there any more, as most that are broken are."""
    path = other_torch(vc.folder / "older", "__version__ = '2.9.1'\n")
    package = Path(path, "horovod")
    (package / "torch").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("__version__ = '0.28.1'\n")
    (package / "torch" / "__init__.py").write_text("import ctypes\nctypes.CDLL('libmpi_cxx.so.20')\n")
    found = doctor(vc, "versions,Horovod", wrapper=on("node2", f"export PYTHONPATH={path}"))
    assert found["versions"]["status"] == "fail"
    assert "2.9.1 on rank 1 (node2)" in found["versions"]["detail"]
    assert found["Horovod"]["status"] == "warn"
    assert "does not load on rank 1 (node2): OSError: libmpi_cxx.so.20" in found["Horovod"]["detail"]


@contextmanager
def slow_link(vc: Cluster, host: str) -> Iterator[None]:
    device = ["tc", "-n", vc.prefix + host, "qdisc"]
    shaper = ["dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "32kbit", "latency", "400ms"]
    subprocess.run([*device, "replace", *shaper], check=True)
    try:
        yield
    finally:
        subprocess.run([*device, "delete", "dev", "eth0", "root"], check=True)


def test_a_slow_link(vc: Cluster) -> None:
    with slow_link(vc, "node2"):
        found = doctor(vc, "allreduce,links")
    assert found["allreduce"]["status"] == found["links"]["status"] == "warn"
    assert "rank 0 (node1) – rank 1 (node2)" in found["links"]["detail"]


def test_a_slow_host(three: Cluster) -> None:
    with slow_link(three, "node2"):
        found = doctor(three, "allreduce,links", slots=[1, 1, 1])
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
