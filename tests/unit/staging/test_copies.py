"""Copies on a host's own disk: equal to their source, made once, shared under a lock, removed when nobody uses them."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.staging import store, tree
from runner.staging.store import Held, clear, find_sent, hold, job_of, source_of, store_folder
from runner.staging.tree import Copy, entries_of, pieces_of

NAMES = st.text("abc.-é ", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store_folder(tmp_path, {})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "env"
    (made / "lib" / "deep").mkdir(parents=True)
    (made / "lib" / "a.py").write_text("a = 1\n")
    (made / "lib" / "empty").touch()
    (made / "lib" / "large").write_bytes(os.urandom(3 * tree.PIECE_BYTES + 7))
    (made / "lib" / "deep" / "link").symlink_to("../a.py")
    (made / "lib" / "away").symlink_to("/nowhere")
    (made / "run").write_text("#!/bin/sh\n")
    (made / "run").chmod(0o755)
    (made / "lib" / "deep").chmod(0o555)
    return made


def held(
    folder: Path,
    source: Path,
    copied: list[str] | None = None,
    *,
    job: str = "",
    keep: bool = False,
    sent: bool = False,
) -> Held:
    entries = entries_of(source)

    def fill(copy: Copy, missing: Sequence[int]) -> None:
        if copied is not None:
            copied.extend(entries[number].path for number in missing)
        for piece in pieces_of(source, entries, missing):
            copy.write(piece)

    return hold(folder, source, entries, fill, job=job, keep=keep, sent=sent)


def contents(top: Path) -> dict[str, bytes]:
    return {entry.path: (top / entry.path).read_bytes() for entry in entries_of(top) if entry.is_file}


def test_a_copy_is_its_source(folder: Path, source: Path) -> None:
    found = held(folder, source)
    assert found.is_new
    assert entries_of(found.copy) == entries_of(source), "types, modes, sizes, times and links"
    assert contents(found.copy) == contents(source)
    assert not held(folder, source).is_new
    one = source / "run"
    assert held(folder, one).copy.read_text() == one.read_text(), "of one file"


@given(files=st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=50), max_size=8))
def test_any_tree(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name) / "source"
        top.mkdir()
        for path, content in files.items():
            if not any(above.is_file() for above in (top / path).parents) and not (top / path).is_dir():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                (top / path).write_bytes(content)
        found = held(store_folder(Path(name), {}), top)
        os.close(found.lock)
        assert entries_of(found.copy) == entries_of(top)
        assert contents(found.copy) == contents(top)


def test_only_changed_files_are_copied_again(folder: Path, source: Path) -> None:
    first = held(folder, source)
    before = (first.copy / "lib" / "large").stat().st_ino
    (source / "lib" / "a.py").write_text("a = 2\n")
    (source / "new").touch()
    (source / "run").unlink()
    copied: list[str] = []
    second = held(folder, source, copied)
    assert copied == ["lib/a.py", "new"]
    assert (second.copy / "lib" / "large").stat().st_ino == before
    assert contents(second.copy) == contents(source)
    assert (first.copy / "lib" / "a.py").read_text() == "a = 1\n", "a job that uses the older copy keeps it"


def test_a_file_that_changes_meanwhile_is_told(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of(source)
    (source / "lib" / "a.py").write_text("a = 2  # longer\n")
    numbers = [n for n, entry in enumerate(entries) if entry.is_file]
    with pytest.raises(UsageError, match=r"a\.py has changed while it was copied"):
        list(pieces_of(source, entries, numbers))


def test_a_file_that_becomes_a_pipe_does_not_hold_the_copy(source: Path) -> None:
    entries = entries_of(source)
    (source / "lib" / "a.py").unlink()
    os.mkfifo(source / "lib" / "a.py")
    with pytest.raises(UsageError, match=r"a\.py (cannot be staged|has changed)"):
        list(pieces_of(source, entries, [n for n, entry in enumerate(entries) if entry.is_file]))


def test_nothing_is_left_of_a_copy_that_fails(folder: Path, source: Path) -> None:
    def fails(copy: Copy, missing: Sequence[int]) -> None:
        raise UsageError("the disk has burnt")

    with pytest.raises(UsageError, match="burnt"):
        hold(folder, source, entries_of(source), fails, job="")
    assert [path.name for path in folder.glob("*/*") if path.suffix not in (".lock",)] == []
    clear(folder, job="")
    assert [path.name for path in folder.glob("*/*")] == ["making.lock"]


def test_what_does_not_fit_is_refused_before_it_is_copied(
    folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "file_system", lambda _: "tmpfs")
    monkeypatch.setattr(store, "free_memory", lambda: 1 << 20)
    copied: list[str] = []
    with pytest.raises(UsageError, match=r"a copy takes 12.0 MiB, and in .* there are 1 MiB left of the memory"):
        held(folder, source, copied)
    assert copied == []


@pytest.fixture
def user(folder: Path, source: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the copy."""
    program = (
        "import sys, time; from pathlib import Path; from tests.unit.staging.test_copies import held; "
        "held(Path(sys.argv[1]), Path(sys.argv[2])); print('holds', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, folder, source], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    yield process
    process.kill()
    process.communicate()


def test_a_copy_is_removed_when_its_last_user_was_killed(
    folder: Path, source: Path, user: subprocess.Popen[str]
) -> None:
    assert clear(folder, job="") == [], "another job of the same user has it"
    user.send_signal(signal.SIGKILL)
    user.wait()
    assert clear(folder, job="") == [source]
    assert [path.name for path in folder.glob("*/*")] == ["making.lock"]


def test_what_a_killed_process_has_left_is_removed(folder: Path, source: Path) -> None:
    os.close(held(folder, source).lock)
    (slot,) = folder.iterdir()
    (slot / "state.partial" / "lib").mkdir(parents=True)
    clear(folder, job="")
    assert [path.name for path in slot.iterdir()] == ["making.lock"]


def test_a_copy_that_is_removed_meanwhile_is_made_again(folder: Path, source: Path) -> None:
    """A process that waits for the lock of a copy that another removes does not hold a lock that nobody sees."""
    for _ in range(20):
        os.close(held(folder, source).lock)
        removing = threading.Thread(target=clear, args=(folder,), kwargs={"job": ""})
        removing.start()
        found = held(folder, source)
        removing.join()
        assert contents(found.copy) == contents(source)
        assert clear(folder, job="") == []
        os.close(found.lock)


def test_copies_stay_for_the_schedulers_job_or_when_they_are_kept(folder: Path, source: Path) -> None:
    os.close(held(folder, source, job="SLURM_JOB_ID=7").lock)
    assert clear(folder, job="SLURM_JOB_ID=7") == []
    os.close(held(folder, source, keep=True).lock)
    assert clear(folder, job="SLURM_JOB_ID=8") == []
    assert clear(folder, job="", keep=False) == [source]
    assert job_of({"SLURM_JOB_ID": "7"}) == "SLURM_JOB_ID=7"


def test_a_folder_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"torch-mpi-runner-{os.getuid()}"
    (tmp_path / name).mkdir(mode=0o755)
    with pytest.raises(UsageError, match="is not this user's alone"):
        store_folder(tmp_path, {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).symlink_to(tmp_path)
    with pytest.raises(UsageError, match="is not this user's alone"):
        store_folder(tmp_path / "other", {})
    with pytest.raises(UsageError, match="/nowhere: No such file"):
        store_folder(Path("/nowhere"), {})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = store_folder(None, {"LOCAL_SCRATCH": str(scratch)})
    assert made.parent == scratch
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    monkeypatch.chdir(scratch)
    assert store_folder(Path("."), {}) == made


def test_what_cannot_be_staged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the copies are in it"):
        held(made := store_folder(tmp_path, {}), tmp_path)
    assert not made.exists(), "nothing is left in the user's folder"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe cannot be staged: it is neither file, folder nor link"):
        entries_of(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        source_of(tmp_path / "none")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="loop cannot be staged"):
        source_of(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the job works in it"):
        source_of(tmp_path)


def test_what_stage_has_sent_is_used_until_an_installation_changes(folder: Path, source: Path) -> None:
    def sent(job: str) -> Held | None:
        found = find_sent(folder, source, job=job)
        return found and found[0]

    assert sent("J=1") is None
    os.close(held(folder, source, job="J=1").lock)
    assert sent("J=1") is None, "of --stage, which compares"
    entries = entries_of(source)
    made = hold(folder, source, entries, lambda *_: None, job="J=1", sent=True)
    again = sent("J=1")
    assert again is not None
    assert again.copy == made.copy
    assert sent("J=2") is None, "another job's"
    (source / "lib" / "new.py").touch()
    assert sent("J=1") is None


def test_the_rest_of_a_copy_whose_removal_was_killed_is_no_copy(folder: Path, source: Path) -> None:
    found = held(folder, source)
    os.close(found.lock)
    found.copy.with_suffix(".json").unlink()
    (found.copy / "lib" / "a.py").unlink()
    again = held(folder, source)
    assert again.is_new
    assert contents(again.copy) == contents(source)


def test_a_copy_that_lacks_files_is_repaired(folder: Path, source: Path) -> None:
    entries = entries_of(source)
    found = held(folder, source, keep=True)
    (found.copy / "lib" / "a.py").unlink()
    (found.copy / "lib" / "away").unlink()
    shutil.rmtree(found.copy / "lib" / "deep")
    copied: list[str] = []
    assert not held(folder, source, copied).is_new
    assert copied == ["lib/a.py"]
    assert entries_of(found.copy) == entries
    os.close(hold(folder, source, entries, lambda *_: None, job="", keep=True, sent=True).lock)
    assert find_sent(folder, source, job="") is not None
    (found.copy / "run").unlink()
    assert find_sent(folder, source, job="") is None


def test_a_process_whose_namespace_is_refused_halfway_stays_the_users(tmp_path: Path) -> None:
    program = (
        "import os; from runner.staging import mounts; call = mounts._call\n"
        "def refusing(name, *arguments):\n"
        "    if name == 'mount': raise PermissionError(1, 'refused')\n"
        "    call(name, *arguments)\n"
        "mounts._call, before = refusing, os.readlink('/proc/self/ns/mnt')\n"
        "try: mounts.show_copies([])\n"
        "except OSError as error: print(error.strerror, os.readlink('/proc/self/ns/mnt') == before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Operation not permitted True\n"


def test_the_state_that_was_sent_last_is_used(folder: Path, source: Path) -> None:
    deep = source / "lib" / "deep" / "er" / "still"
    deep.parent.parent.chmod(0o755)
    deep.mkdir(parents=True)
    states = []
    for text in ("a = 1", "a = 2", "a = 1"):
        (deep / "b.py").write_text(text)
        os.utime(deep / "b.py", (0, len(states) % 2))
        states.append(held(folder, source, job="J=1", sent=True))  # each is in use, and none is removed
        found = find_sent(folder, source, job="J=1")
        assert found is not None
        assert (found[0].copy / "lib/deep/er/still/b.py").read_text() == text
    assert states[0].copy == states[2].copy != states[1].copy


def test_what_is_sent_outside_of_a_job_waits_for_its_first_run(
    folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(held(folder, source, sent=True).lock)
    assert clear(folder, job="") == [], "`stage` of another path"
    found = find_sent(folder, source, job="")
    assert found is not None
    assert clear(folder, job="") == []
    os.close(found[0].lock)
    assert clear(folder, job="") == [source]
    os.close(held(folder, source, sent=True).lock)
    monkeypatch.setattr(store, "_AWAITED_SECONDS", 0.0)
    assert clear(folder, job="") == [source]


@pytest.mark.parametrize("text", ["", "1", "[1]", '{"keep": true}'])
def test_a_damaged_record_is_no_error(folder: Path, source: Path, text: str) -> None:
    found = held(folder, source, keep=True)
    os.close(found.lock)
    found.copy.with_suffix(".json").write_text(text)
    again = held(folder, source, keep=True)
    assert contents(again.copy) == contents(source)
    (source / "run").write_text("changed")
    assert contents(held(folder, source).copy) == contents(source)


def test_what_was_written_into_a_copy_is_removed_from_it(folder: Path, source: Path) -> None:
    found = held(folder, source, keep=True)
    (found.copy / "lib" / "__pycache__").mkdir()
    (found.copy / "lib" / "__pycache__" / "a.pyc").touch()
    held(folder, source)
    assert contents(found.copy) == contents(source)
    assert entries_of(found.copy) == entries_of(source)


def test_an_older_copy_stays_while_files_are_taken_from_it(folder: Path, source: Path) -> None:
    os.close(held(folder, source).lock)
    (source / "run").write_text("changed")
    entries = entries_of(source)

    def fill(copy: Copy, missing: Sequence[int]) -> None:
        assert clear(folder, job="") == []
        for piece in pieces_of(source, entries, missing):
            copy.write(piece)

    assert contents(hold(folder, source, entries, fill, job="").copy) == contents(source)
