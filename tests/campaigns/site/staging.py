"""``stage`` and ``--stage`` on virtual hosts with slow links: bytes and opens per host, and the time to a job's first step.

Each host has a disk of its own (its /dev/shm), and sees the environment through a file system that counts (counting.py). The environment
is ``SITE_ENV``, a venv with a CPU build of torch and this package:

    python3.11 -m venv ENV; ENV/bin/pip install torch==2.13.0 numpy psutil rich jinja2 safetensors filelock nvidia-ml-py PATH-OF-CHECKOUT
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.virtual import Cluster, cluster
from tests.launching import clean_environment, ok
from tests.pages import table

HOSTS = (2, 4, 8)
RANKS = 2  # per host
LINK = "200mbit"
DELAY_MS = "2"  # of each open and look
FIRST_STEP = Path(__file__).with_name("first_step.py")
MIB = 1 << 20


def section() -> list[str]:
    """Measure, and return the lines of the page's section."""
    source = Path(os.environ["SITE_ENV"])
    size = sum(file.stat().st_size for file in source.rglob("*") if file.is_file() and not file.is_symlink())
    files = sum(1 for file in source.rglob("*") if file.is_file())
    rows, compared = [], []
    for hosts in HOSTS:
        with cluster(hosts) as vc:
            slow_links(vc)
            rows += list(with_and_without(vc, source))
        with cluster(hosts, slurm=True) as vc:
            slow_links(vc)
            compared.append(by_sbcast(vc, source))
            print("sbcast", *compared[-1], file=sys.stderr, flush=True)
    titles = ["hosts", "way", "seconds to the first step", "reader", "other hosts (each)"]
    return [
        f"An environment with a CPU build of torch: {size / MIB:.0f} MiB in {files} files. Links of {LINK}, {RANKS} ranks per host, page caches "
        f"empty. Each open of a file, and each look at one, takes {DELAY_MS} ms more. What hosts read of the shared file system is in "
        "opens and MiB, with the start of the small processes.",
        "",
        *table(titles, rows),
        "",
        "The same environment by Slurm's sbcast: `tar` on the first host, `sbcast`, `tar` on each host; and by `stage`.",
        "",
        *table(
            ["hosts", "tar (s)", "sbcast (s)", "unpack (s)", "sum (s)", "stage (s)"],
            [
                [*row, next(one[2].split()[0] for one in rows if one[0] == row[0] and one[1] == "`stage`")]
                for row in compared
            ],
        ),
    ]


@dataclass(frozen=True)
class Read:
    """What one host has read of the shared file system."""

    opens: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.opens} opens, {self.bytes / MIB:.0f} MiB"


def with_and_without(vc: Cluster, source: Path) -> Iterator[list[object]]:
    """The rows of a cluster."""
    environment = vc.folder / "env"
    environment.mkdir()
    python = [str(environment / "bin/python"), "-m", "runner"]
    hosts = len(vc.hosts)
    stage_to = ["--stage-to", "/dev/shm"]
    ways = {
        "no copies": (RANKS, [*python, str(FIRST_STEP)]),
        "`--stage` alone": (RANKS, [*python, "--stage", str(environment), *stage_to, str(FIRST_STEP)]),
        "`stage`": (1, [*python, "stage", "--to", "/dev/shm", "--keep", str(environment)]),
        "`--stage` after it": (RANKS, [*python, "--stage", str(environment), *stage_to, str(FIRST_STEP)]),
    }
    for way, (ranks, command) in ways.items():
        with shared(vc, source) as counted:
            began = time.time()
            texts = on_all_hosts(vc, environment, ranks, command)
            ends = [float(found) for text in texts for found in re.findall(r"first step at (\S+)", text)]
            assert len(ends) == (hosts * RANKS if ranks == RANKS else 0), texts
            seconds = f"{max(ends) - began:.1f}" if ends else f"{time.time() - began:.1f} (until all hosts have it)"
            time.sleep(1)  # until the counts are written
            read = [counted(host) for host in vc.hosts]
        others = Read(max(one.opens for one in read[1:]), max(one.bytes for one in read[1:]))
        print(hosts, way, seconds, read[0], others, file=sys.stderr, flush=True)
        yield [hosts, way, seconds, read[0], others]


def on_all_hosts(vc: Cluster, environment: Path, ranks: int, command: Sequence[str]) -> list[str]:
    """Start ranks by hand on all hosts, each with the environment at the same path. Returns what each host printed."""
    size, port = len(vc.hosts) * ranks, vc.free_port(vc.hosts[0])
    address = vc.address(vc.hosts[0])

    def start(index: int) -> str:
        variables = f"WORLD_SIZE={size} LOCAL_WORLD_SIZE={ranks} MASTER_ADDR={address} MASTER_PORT={port}"
        each = " ".join(
            f"RANK={index * ranks + local} LOCAL_RANK={local} {variables} {shlex.join(command)} & pids+=($!);"
            for local in range(ranks)
        )
        shared_at = vc.folder / f"shared-{vc.hosts[index]}"
        script = f"mount --bind {shared_at} {environment}; {each} for pid in ${{pids[@]}}; do wait $pid || exit 1; done"
        return ok(vc.run(vc.hosts[index], ["bash", "-c", script], timeout=550)).stdout

    with ThreadPoolExecutor(len(vc.hosts)) as pool:
        return list(pool.map(start, range(len(vc.hosts))))


@contextlib.contextmanager
def shared(vc: Cluster, source: Path, hosts: Sequence[str] = ()) -> Iterator[object]:
    """Show the environment to each host by a file system of its own, whose caches are empty."""
    started = []
    for host in hosts or vc.hosts:
        point, counts = vc.folder / f"shared-{host}", vc.folder / f"counts-{host}.json"
        point.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.campaigns.site.counting", str(source), str(point), str(counts)]
        started.append(subprocess.Popen(command, env=clean_environment(DELAY_MS=DELAY_MS)))
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("1")
    deadline = time.monotonic() + 30
    while not all(os.path.ismount(vc.folder / f"shared-{host}") for host in hosts or vc.hosts):
        assert time.monotonic() < deadline, "the counting file system is not mounted"
        time.sleep(0.1)

    def counted(host: str) -> Read:
        counts = json.loads((vc.folder / f"counts-{host}.json").read_text())
        return Read(counts["opens"], counts["bytes"])

    try:
        yield counted
    finally:
        for host in hosts or vc.hosts:
            subprocess.run(["umount", "--lazy", vc.folder / f"shared-{host}"], check=False)
        for process in started:  # whose last user may take its time
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


def slow_links(vc: Cluster) -> None:
    """Limit what each host sends and receives."""
    shape = ["root", "tbf", "rate", LINK, "burst", "256kb", "latency", "100ms"]
    for host in vc.hosts:
        for namespace, device in ((host, "eth0"), ("switch", f"{host}-0")):
            inside = ["ip", "netns", "exec", vc.prefix + namespace]
            subprocess.run([*inside, "tc", "qdisc", "add", "dev", device, *shape], check=True)


def by_sbcast(vc: Cluster, source: Path) -> list[object]:
    """The seconds of an archive, of sbcast and of unpacking."""
    assert shutil.which("sbcast")
    first = vc.hosts[0]
    with shared(vc, source, [first]):
        archive, point = vc.folder / "env.tar", vc.folder / f"shared-{first}"
        steps = (
            f"tar -cf {archive} -C {point} .",
            f"sbcast {archive} /dev/shm/env.tar",
            "srun --ntasks-per-node=1 bash -c 'mkdir /dev/shm/env && tar -xf /dev/shm/env.tar -C /dev/shm/env'",
        )
        timed = "; ".join(f"a=$(date +%s.%N); {step} || exit 1; echo seconds $a $(date +%s.%N)" for step in steps)
        allocate = ["salloc", "--quiet", f"--nodes={len(vc.hosts)}", "--ntasks-per-node=1", "bash", "-c", timed]
        done = ok(vc.run(first, allocate, timeout=550))
    archive.unlink()
    seconds = [float(end) - float(begin) for begin, end in re.findall(r"seconds (\S+) (\S+)", done.stdout)]
    return [len(vc.hosts), *(f"{one:.1f}" for one in (*seconds, sum(seconds)))]
