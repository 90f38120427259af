"""``--stage`` and ``stage`` under a real mpirun: what the ranks read, as root, as an ordinary user, and where mounts are forbidden."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.launching import RUNNER, finish, mpirun, ok, own_lines, path_of, run, start, torchrun, under_mpirun
from tests.polling import LIMIT, poll_until

PROGRAM = path_of("reads_what_is_staged")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")
USER = 54321


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "library"
    made.mkdir()
    (made / "staged_library.py").write_text("FILE = __file__\n")
    (made / "data").write_bytes(os.urandom(1 << 20))
    (tmp_path / "disk").mkdir()
    for folder in (made, *(above for above in made.parents if "pytest-" in str(above))):
        folder.chmod(0o755)
    (tmp_path / "disk").chmod(0o777)
    return made


def options(source: Path) -> list[str]:
    return [f"--stage={source}", f"--stage-to={source.parent / 'disk'}"]


def copies(source: Path) -> list[str]:
    return [path.name for path in (source.parent / "disk").glob("*/*/*") if path.suffix != ".lock"]


def as_user(*command: str) -> list[str]:
    """Run a command as a user without capabilities, who may enter the folders of Python and of this checkout."""
    closed = [
        folder
        for folder in (*Path(sys.base_prefix).parents, *Path(sys.prefix).parents)
        if folder.stat().st_mode & 1 == 0
    ]
    opened = "".join(
        f"mkdir -p {hidden}; mount --bind {sys.base_prefix} {hidden}; mount -t tmpfs -o mode=755 none {folder}; "
        f"mkdir -p {sys.base_prefix}; mount --bind {hidden} {sys.base_prefix}; "
        for folder in dict.fromkeys(closed)
        for hidden in [f"/mnt/{folder.name}"]
    )
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    inside = f"mount -t tmpfs none /mnt; {opened}cd /tmp; exec {shlex.join([*drop, *command])}"
    return ["unshare", "--mount", "bash", "-ec", inside]


def read_by(done: str) -> list[list[str]]:
    """What each rank says: the module's file, whether its folder is a mount, the data's size, whether it may be written."""
    return [line.split()[1:] for line in done.splitlines() if line.startswith("staged:")]


@pytest.mark.parametrize("who", [pytest.param("root", marks=NEEDS_ROOT), pytest.param("user", marks=NEEDS_ROOT)])
def test_ranks_find_the_copies_at_the_same_path(source: Path, who: str) -> None:
    command = under_mpirun(2, *RUNNER, *options(source), PROGRAM, str(source))
    more = {"HOME": "/tmp", "PRTE_MCA_prte_tmpdir_base": "/tmp"} if who == "user" else {}
    done = ok(run(*(as_user(*command) if who == "user" else command), **more))
    assert read_by(done.stdout) == [[str(source / "staged_library.py"), "mounted", str(1 << 20), "read-only"]] * 2
    (line,) = (line for line in own_lines(done) if "is read from" in line)
    assert "1.0 MiB in 3 entries, copied in" in line
    poll_until(lambda: not copies(source), LIMIT, "the copies are removed")


@NEEDS_ROOT
def test_where_mounts_are_forbidden_modules_come_from_the_copies(source: Path) -> None:
    forbidden = "for kind in user mnt; do echo 0 > /proc/sys/user/max_${kind}_namespaces; done; "
    command = under_mpirun(2, *RUNNER, *options(source), PROGRAM, str(source))
    inside = ["unshare", "--user", "--map-root-user", "bash", "-ec", forbidden + shlex.join(command)]
    done = ok(run(*inside, PYTHONPATH=str(source)))
    for file, mounted, *_ in read_by(done.stdout):
        assert Path(file).is_relative_to(source.parent / "disk")
        assert mounted == "plain"
    assert any("allows no mounts" in line for line in own_lines(done))


@NEEDS_ROOT
def test_a_second_step_finds_what_the_first_has_sent(source: Path) -> None:
    job = {"SLURM_JOB_ID": "11"}
    sent = ok(mpirun(2, *RUNNER, "stage", f"--to={source.parent / 'disk'}", str(source), **job))
    assert "1.0 MiB copied" in sent.stdout
    (source / "staged_library.py").write_text("FILE = __file__  # changed\n")
    again = ok(mpirun(2, *RUNNER, "stage", f"--to={source.parent / 'disk'}", str(source), **job))
    assert ", 27 B copied" in again.stdout, "only the file that has changed"
    done = ok(mpirun(2, *RUNNER, *options(source), PROGRAM, str(source), **job))
    assert any("as `stage` sent it" in line for line in own_lines(done))
    assert copies(source), "the job may have a third step"
    ok(mpirun(1, *RUNNER, "stage", f"--to={source.parent / 'disk'}", "--remove"))
    assert not copies(source)


def test_torchruns_ranks_stage_too(source: Path) -> None:
    """Its own store serves the ranks, and not the runner's."""
    done = ok(torchrun(2, "-m", "runner", "stage", f"--to={source.parent / 'disk'}", str(source)))
    assert done.stdout.count("1.0 MiB copied") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_what_is_interrupted(source: Path, number: signal.Signals) -> None:
    for index in range(60_000):
        (source / str(index)).touch()
    job = start(*under_mpirun(2, *RUNNER, "stage", f"--to={source.parent / 'disk'}", str(source)))
    poll_until(lambda: copies(source), LIMIT, "the copy is being made")
    job.send_signal(number)
    assert finish(job, LIMIT).returncode != 0
    poll_until(lambda: not copies(source), LIMIT, "what there was of the copy is removed")


@NEEDS_ROOT
def test_what_a_killed_job_has_left_is_removed_by_the_next(source: Path) -> None:
    done = mpirun(2, *RUNNER, *options(source), PROGRAM, str(source), "--kill-agent")
    assert done.returncode != 0
    assert copies(source)
    other = source.parent / "other"
    other.mkdir()
    ok(mpirun(1, *RUNNER, f"--stage={other}", f"--stage-to={source.parent / 'disk'}", PROGRAM, str(source)))
    poll_until(lambda: not copies(source), LIMIT, "the copies are removed")


@pytest.mark.parametrize("command", [["--stage"], ["stage"]])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("none", "none cannot be staged: No such file or directory"),
        (".", "cannot be staged: the job works in it"),
        ("pipe", "pipe cannot be staged: it is neither file, folder nor link"),
    ],
)
def test_what_cannot_be_staged_is_refused_in_one_line(tmp_path: Path, command: list[str], what: str, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    target = [PROGRAM, "x"] if command == ["--stage"] else []
    done = mpirun(2, *RUNNER, *command, what, *target, cwd=tmp_path)
    (line,) = own_lines(done)
    assert said in line
    assert done.returncode == 2
