"""``stage`` on hosts with disks of their own: one reads, each passes on; and ``--stage`` in the next step of the job."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.launchers import LAUNCHERS, openmpi5_command
from tests.cluster.virtual import cluster
from tests.launching import RUNNER, ok, own_lines, path_of

DISK = "/dev/shm"  # each virtual host has its own
PROGRAM = path_of("reads_what_is_staged")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "library"
    (made / "deep").mkdir(parents=True)
    (made / "staged_library.py").write_text("FILE = __file__\n")
    (made / "data").write_bytes(os.urandom(9 << 20))
    for number in range(300):
        (made / "deep" / f"{number}.py").write_text(f"NUMBER = {number}\n")
    return made


@pytest.mark.parametrize("launcher", ["srun", "openmpi5", "mpich"])
def test_one_host_reads_and_the_others_receive(launcher: str, source: Path) -> None:
    with cluster(3, slurm=launcher == "srun") as vc:
        start = LAUNCHERS[launcher]
        done = ok(start(vc, (1, 1, 1), [*RUNNER, "stage", "--keep", f"--to={DISK}", str(source)]))
        rows = re.findall(r"^(node\d): \S+: 9.0 MiB in 304 entries, 9.0 MiB copied", done.stdout, re.MULTILINE)
        assert rows == ["node1", "node2", "node3"]
        trained = ok(start(vc, (2, 2, 2), [*RUNNER, f"--stage={source}", f"--stage-to={DISK}", PROGRAM, str(source)]))
        said = [line.split()[2:] for line in trained.stdout.splitlines() if line.startswith("staged:")]
        assert said == [["mounted", str(9 << 20), "read-only"]] * 6
        assert len([line for line in own_lines(trained) if "as `stage` sent it" in line]) == 3
        (source / "deep" / "7.py").write_text("NUMBER = -7\n")
        again = ok(start(vc, (1, 1, 1), [*RUNNER, "stage", f"--to={DISK}", str(source)]))
        assert len(re.findall(r", 12 B copied", again.stdout)) == 3
        removed = ok(start(vc, (1, 1, 1), [*RUNNER, "stage", "--remove", f"--to={DISK}"]))
        assert removed.stdout.count("removed the copy of") == 3


def test_a_host_without_room_ends_the_job_in_one_line(source: Path) -> None:
    with cluster(3, slurm=True) as vc:
        full = f'if [ $(hostname) = node2 ]; then mount -t tmpfs -o size=1M none {DISK}; fi; exec "$@"'
        command = ["unshare", "--mount", "bash", "-c", full, "bash", *RUNNER, "stage", f"--to={DISK}", str(source)]
        done = LAUNCHERS["srun"](vc, (1, 1, 1), command)
        (line,) = own_lines(done)
        assert "host node2: a copy takes 9.6 MiB, and in /dev/shm/torch-mpi-runner-0 there are" in line
        assert done.returncode != 0


def test_two_jobs_send_the_same_path_along_the_hosts_in_opposite_order(source: Path) -> None:
    """The hosts' locks are taken in one order."""
    with cluster(2, slurm=False) as vc:
        ahead = openmpi5_command(vc, (1, 1), [*RUNNER, "stage", "--keep", f"--to={DISK}", str(source)])
        at = ahead.index("--host") + 1
        back = [*ahead[:at], ",".join(reversed(ahead[at].split(","))), *ahead[at + 1 :]]
        assert back != ahead
        for number in range(20_000):  # which take a while to link from the older copy
            (source / "deep" / str(number)).touch()
        ok(vc.run("node1", ahead))
        (source / "data").write_bytes(os.urandom(9 << 20))
        with ThreadPoolExecutor(2) as pool:
            for job in [pool.submit(vc.run, "node1", command) for command in (ahead, back)]:
                assert ok(job.result()).stdout.count("9.0 MiB in 20304 entries") == 2
