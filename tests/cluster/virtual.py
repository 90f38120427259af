"""A cluster on one machine: hosts of their own names, addresses and interfaces, and a real Slurm on them.

    with cluster(hosts=2, slurm=True) as vc:
        vc.run("node1", ["srun", "-N2", "hostname"])

or, for rehearsing a job script before the queue (``make cluster-up``, ``cluster-shell``, ``cluster-down``):

    python -m tests.cluster.virtual up | down | shell

Each host is a network namespace with a host name, an /etc/hosts and a /dev/shm of its own, so that messages between
hosts do not go by shared memory; all other files they share with the machine. The switch between them is a bridge in one more namespace, so nothing appears in the machine's own network, and deleting
the namespaces deletes all. Needs root and Debian's iproute2; for Slurm also slurm-wlm and munge (make cluster-deps).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STATE = Path("/run/torch-mpi-runner")  # a folder per cluster
CORES_PER_HOST = 4  # as Slurm is told; the machine's cores are shared

AGENT = """#!/bin/bash
# Stands in for ssh: takes the host from between the options, and runs the rest there.
host=
while [[ $1 == -* || -z $host ]]; do
  case $1 in -l|-p|-o|-i) shift 2 ;; -*) shift ;; *) host=${{1##*@}}; shift ;; esac
done
case $host in {known}) ;; *) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;; esac
exec ip netns exec "{prefix}$host" unshare --uts bash -c "mount --bind {folder}/shm-$host /dev/shm; hostname $host; $*"
"""

SLURM_CONF = """
ClusterName={prefix}
SlurmctldHost={first}({first_address})
SlurmUser=root
AuthType=auth/munge
# A job that was put back into the queue starts after cred_expire seconds, by default 120.
AuthInfo=socket={folder}/munge/socket,cred_expire=20
SchedulerParameters=sched_interval=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={folder}/slurm/state
SlurmdSpoolDir={folder}/slurm/spool-%n
SlurmctldLogFile={folder}/slurm/slurmctld.log
SlurmdLogFile={folder}/slurm/slurmd-%n.log
SlurmctldPidFile={folder}/slurm/slurmctld.pid
SlurmdPidFile={folder}/slurm/slurmd-%n.pid
KillWait=5
GresTypes=gpu
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class ClusterError(Exception):
    """The cluster cannot be made here; the message says what is missing."""


@dataclass
class Cluster:
    """A running cluster. ``folder`` holds its state and may be used for files of the tests."""

    number: int
    hosts: tuple[str, ...]
    family: int  # 4 or 6: of the hosts' addresses
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    timeout: float = 120  # seconds, of a command
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """Begins the names of all namespaces of this cluster."""
        return f"vc{self.number}-"

    @property
    def agent(self) -> str:
        """The program that stands in for ssh."""
        return str(self.folder / "ssh")

    @property
    def small(self) -> Path:
        """A file system of one MiB that all hosts share."""
        return self.folder / "small"

    def address(self, host: str, network: int = 0) -> str:
        """A host's address; network 1 is that of its second interface, if it has one."""
        index = self.hosts.index(host) + 1
        if self.family == 6:
            return f"fd77:{self.number}:{network}::{index}"
        return f"10.{77 + network}.{self.number}.{index}"

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host, with its name and shared memory, from this machine."""
        # ip netns exec gives each command a mount namespace, from which nothing comes back.
        script = f"mount --bind {self.folder}/shm-{host} /dev/shm; hostname {host}; exec {shlex.join(command)}"
        return ["ip", "netns", "exec", self.prefix + host, "unshare", "--uts", "bash", "-c", script]

    def run(
        self,
        host: str,
        command: Sequence[str],
        *,
        timeout: float | None = None,
        cwd: Path | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; when the time is over, all it started is killed (TimeoutError)."""
        from tests.launching import clean_environment, finish

        process = subprocess.Popen(
            self.command(host, command),
            cwd=cwd or self.folder,
            env=clean_environment() | self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        done = finish(process, self.timeout if timeout is None else timeout)
        return subprocess.CompletedProcess(list(command), done.returncode, done.stdout, done.stderr)

    def free_port(self, host: str) -> int:
        """A port that nothing listens on there."""
        code = "import socket; print(socket.create_server(('', 0)).getsockname()[1])"
        return int(self.run(host, [sys.executable, "-c", code]).stdout)

    def network(self, *arguments: str) -> None:
        """``ip`` in one of the cluster's namespaces: ``vc.network("-n", "node1", "link", …)``."""
        translated = [self.prefix + a if i and arguments[i - 1] == "-n" else a for i, a in enumerate(arguments)]
        _ip(*translated)

    def processes(self, host: str) -> list[int]:
        """The processes on a host."""
        return _pids(self.prefix + host)


@contextlib.contextmanager
def cluster(hosts: int = 2, *, slurm: bool = False, family: int = 4, networks: int = 1) -> Iterator[Cluster]:
    """A cluster that is gone when the context ends, however it ends.

    Args:
        hosts: how many; they are called node1, node2, …
        slurm: start munge, slurmctld on node1, and a slurmd on each host.
        family: 4 or 6: the hosts have addresses of this version of IP only.
        networks: interfaces per host: eth0, eth1, …, each on a network of its own.

    Raises:
        ClusterError: not root, or a program is missing.
    """
    made = up(hosts, slurm=slurm, family=family, networks=networks)
    try:
        yield made
    finally:
        down(made.number)
        for daemon in made.daemons:
            daemon.wait()


def up(hosts: int = 2, *, slurm: bool = False, family: int = 4, networks: int = 1, owner: int | None = None) -> Cluster:
    """Make a cluster. It stays until ``down``; those whose owner has died are taken down first."""
    problem = missing(slurm)
    if problem:
        raise ClusterError(problem)
    _reap()
    number, folder = _take_number()
    names = tuple(f"node{index}" for index in range(1, hosts + 1))
    made = Cluster(number, names, family, folder)
    pid = os.getpid() if owner is None else owner
    (folder / "owner").write_text(f"{pid} {_started(pid)}")
    try:
        _make_memory(made)
        _make_network(made, networks)
        if slurm:
            _start_slurm(made)
    except BaseException:
        down(number)
        raise
    return made


def down(number: int) -> None:
    """Take a cluster down: its processes, then its namespaces with all that is in them, then its memory and files."""
    prefix = f"vc{number}-"
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    namespaces = [line.split()[0] for line in listed.splitlines() if line.startswith(prefix)]
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pids = [pid for namespace in namespaces for pid in _pids(namespace)]
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for namespace in namespaces:
        subprocess.run(["ip", "netns", "delete", namespace], check=False)
        shutil.rmtree(f"/etc/netns/{namespace}", ignore_errors=True)
    for memory in (*(STATE / str(number)).glob("shm-*"), STATE / str(number) / "small"):
        subprocess.run(["umount", "--quiet", "--lazy", memory], check=False)
    shutil.rmtree(STATE / str(number), ignore_errors=True)
    for folder in (STATE, Path("/etc/netns")):
        with contextlib.suppress(OSError):
            folder.rmdir()  # where it is empty


def missing(slurm: bool) -> str:
    """What a cluster needs and this machine lacks, or an empty string."""
    if os.geteuid() != 0:
        return "a virtual cluster needs root: it makes network namespaces"
    programs = ["ip", "unshare", *(["slurmctld", "slurmd", "munged", "srun"] if slurm else [])]
    absent = [program for program in programs if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed: make cluster-deps" if absent else ""


def running(owner: int | None = None) -> list[int]:
    """The numbers of the clusters that are up: all, or those of a process (0: made by hand, by ``make cluster-up``)."""
    folders = STATE.glob("[0-9]*") if STATE.exists() else ()
    return sorted(int(folder.name) for folder in folders if owner is None or _owner(folder)[0] == owner)


def _owner(folder: Path) -> tuple[int, str]:
    """(process, when it was started) that a cluster belongs to; (-1, "") while it is being made."""
    try:
        pid, started = (folder / "owner").read_text().split()
    except (OSError, ValueError):
        return -1, ""
    return int(pid), started


def _take_number() -> tuple[int, Path]:
    STATE.mkdir(exist_ok=True)
    for number in range(250):
        folder = STATE / str(number)
        try:
            folder.mkdir()  # atomic: two that start at once get two numbers
        except FileExistsError:
            continue
        return number, folder
    raise ClusterError(f"{STATE} holds 250 clusters; take some down")


def _reap() -> None:
    for number in running():
        pid, started = _owner(STATE / str(number))
        if pid > 0 and _started(pid) != started:
            down(number)


def _started(pid: int) -> str:
    """When a process was started, in ticks since boot; tells it from a later one of the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "gone"


def _make_memory(made: Cluster) -> None:
    for host in made.hosts:
        memory = made.folder / f"shm-{host}"
        memory.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "none", memory], check=True)
    made.small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", made.small], check=True)


def _make_network(made: Cluster, networks: int) -> None:
    (made.folder / "ssh").write_text(AGENT.format(known="|".join(made.hosts), prefix=made.prefix, folder=made.folder))
    (made.folder / "ssh").chmod(0o755)
    switch = f"{made.prefix}switch"
    _ip("netns", "add", switch)
    for network in range(networks):
        _ip("-n", switch, "link", "add", f"br{network}", "type", "bridge")
        _ip("-n", switch, "link", "set", f"br{network}", "up")
    known = ["127.0.0.1 localhost", "::1 localhost", *(f"{made.address(host)} {host}" for host in made.hosts)]
    for host in made.hosts:
        namespace = made.prefix + host
        etc = Path("/etc/netns") / namespace
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "hosts").write_text("\n".join(known) + "\n")
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # nobody there: other names fail at once
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        for network in range(networks):
            port = f"{host}-{network}"
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", f"eth{network}", "netns", namespace)
            _ip("-n", switch, "link", "set", port, "master", f"br{network}", "up")
            bits, options = ("/64", ["nodad"]) if made.family == 6 else ("/24", [])
            _ip("-n", namespace, "address", "add", made.address(host, network) + bits, "dev", f"eth{network}", *options)
            _ip("-n", namespace, "link", "set", f"eth{network}", "up")


def _start_slurm(made: Cluster) -> None:
    folder, first = made.folder, made.hosts[0]
    for sub in ("munge", "slurm/state", *(f"slurm/spool-{host}" for host in made.hosts)):
        (folder / sub).mkdir(parents=True)
    (folder / "munge").chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    nodes = [f"NodeName={h} NodeAddr={made.address(h)} CPUs={CORES_PER_HOST} Gres=gpu:2" for h in made.hosts]
    configuration = SLURM_CONF.format(
        prefix=made.prefix.rstrip("-"), first=first, first_address=made.address(first), folder=folder
    )
    (folder / "slurm.conf").write_text(configuration.strip() + "\n" + "\n".join(nodes) + "\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    # Two GPUs per host that Slurm can allot: it asks for no more than a file of each.
    (folder / "gres.conf").write_text("Name=gpu File=/dev/zero\nName=gpu File=/dev/full\n")
    made.environment["SLURM_CONF"] = str(folder / "slurm.conf")
    munge = [f"--key-file={key}", f"--socket={folder}/munge/socket", f"--pid-file={folder}/munge/pid"]
    munge += [f"--log-file={folder}/munge/log", f"--seed-file={folder}/munge/seed", "--force", "--foreground"]
    _daemon(made, first, ["munged", *munge])
    _daemon(made, first, ["slurmctld", "-D"])
    for host in made.hosts:
        _daemon(made, host, ["slurmd", "-D", "-N", host])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        states = made.run(first, ["sinfo", "--noheader", "--format=%T %D"], timeout=20).stdout.split()
        if states == ["idle", str(len(made.hosts))]:
            return
        time.sleep(0.2)
    log = (folder / "slurm" / "slurmctld.log").read_text()[-1500:]
    raise ClusterError(f"Slurm's nodes are {' '.join(states) or 'silent'} after 30 s:\n{log}")


def _daemon(made: Cluster, host: str, command: list[str]) -> None:
    made.daemons.append(
        subprocess.Popen(
            made.command(host, command),
            env=os.environ | made.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=made.folder,
        )
    )


def _pids(namespace: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def main() -> None:
    """The command line behind ``make cluster-up`` and its kin."""
    try:
        if sys.argv[1:] == ["up"]:
            made = up(2, slurm=not missing(slurm=True), owner=0)
            print(f"cluster {made.number}: {', '.join(made.hosts)}; make cluster-shell opens a shell on node1")
        elif sys.argv[1:] == ["down"]:
            for number in running(owner=0):
                down(number)
        else:
            _shell()
    except ClusterError as error:
        sys.exit(f"cluster: {error}")


def _shell() -> None:
    made = running(owner=0)
    if not made:
        raise ClusterError("no cluster is up: make cluster-up")
    folder = STATE / str(made[0])
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    agent = str(folder / "ssh")
    os.environ.update(OMPI_MCA_plm_rsh_agent=agent, PRTE_MCA_plm_ssh_agent=agent, HYDRA_LAUNCHER_EXEC=agent)
    names = ("node1", "node2")
    print(f"a shell on node1 of {', '.join(names)}; {folder / 'ssh'} stands in for ssh; srun and sbatch are real")
    command = Cluster(int(folder.name), names, 4, folder).command("node1", [os.environ.get("SHELL", "bash")])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
