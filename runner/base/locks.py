"""Let one run at a time write to a folder or file, by a lease that the run renews.

flock does not serve: Lustre may be mounted without it, and an NFS server forgets the locks of a host that was restarted. A lease is
a file that only one process can create. A waiting run sees by its own clock whether the file changes, so clocks may differ.

    released, or its process has ended on this host: the next run takes the lease at once
    renewed: the next run is refused
    not renewed for 60 s: one of the waiting runs takes the lease; its former holder ends before it writes again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import RunnerError, UsageError
from runner.base.in_thread import call_in_thread

if TYPE_CHECKING:
    from filelock import OwnerRecord, SoftFileLease

_NAME = ".in-use"
RENEWAL_SECONDS = 3.0  # between two renewals
ABANDONED_SECONDS = 60.0  # without a renewal: the lease may be taken
LEAVING_SECONDS = 5.0  # for the holder to end by itself: its launcher may have ended just now
LOOK_SECONDS = 0.25  # between two looks at a lease that another run holds
REPORT_SECONDS = 2.0  # of waiting, after which the run says why it waits


@contextmanager
def held(paths: Sequence[tuple[Path, str]], report: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Hold the leases of existing folders and of files; threads of filelock renew them.

    Args:
        paths: each place with the option that names it.
        report: called with a line that says why this run waits.

    Yields a function that raises RunnerError if another run has taken a lease meanwhile.

    Raises:
        UsageError: another run holds a lease, or the lease cannot be written.
    """
    options: dict[Path, str] = {}
    for path, option in paths:
        options.setdefault(path.resolve(), option)  # the program may change its working folder later
    with ExitStack() as stack:
        # Several abandoned leases are waited for at the same time, and Ctrl-C ends the wait.
        found = {path: call_in_thread(partial(_acquire, path, option, report)) for path, option in options.items()}
        for one in found.values():
            if one.exception() is None:
                stack.callback(_release, one.result())
        leases = {path: one.result() for path, one in found.items()}

        def check() -> None:
            for path, lease in leases.items():
                owner = lease.owner  # None: the file is gone or cannot be read now, which is no reason to end a job
                if owner is not None and owner.token != lease.token:
                    raise RunnerError(
                        f"{_described(owner)} writes to {path} now: "
                        f"this run was not seen to continue for {ABANDONED_SECONDS:.0f} s"
                    )

        yield check


def _acquire(what: Path, option: str, report: Callable[[str], None]) -> SoftFileLease:
    import filelock

    path = what / _NAME if what.is_dir() else what.with_name(f".{what.name}{_NAME}")
    lease = filelock.SoftFileLease(
        path,
        lease_duration=ABANDONED_SECONDS,
        heartbeat_interval=RENEWAL_SECONDS,
        thread_local=False,
        timeout=3 * ABANDONED_SECONDS,
        poll_interval=LOOK_SECONDS,
    )
    began = time.monotonic()
    renewed_at: float | None = None  # by the file system's clock, when this run looked first
    is_reported = False

    def is_in_use() -> bool:
        nonlocal renewed_at, is_reported
        waited, owner = time.monotonic() - began, lease.owner
        if owner is None:
            return False
        if waited > REPORT_SECONDS and not is_reported:
            is_reported = True
            report(f"waiting to see whether {_described(lease.owner)} still writes to {what}")
        with suppress(OSError):
            now = path.stat().st_mtime
            renewed_at = now if renewed_at is None else renewed_at
            return waited > LEAVING_SECONDS and now != renewed_at
        return False

    try:
        lease.acquire(cancel_check=is_in_use)
    except filelock.Timeout:
        owner = lease.owner
        fix = "wait for its end, or name another place" if owner else f"remove {path} if none does"
        raise UsageError(f"{option}: {_described(owner)} writes to {what}", fix=fix) from None
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}", fix="name another place") from None
    return lease


def _release(lease: SoftFileLease) -> None:
    with suppress(OSError):
        lease.release()


def _described(owner: OwnerRecord | None) -> str:
    if owner is None:  # the file says nothing
        return "another run"
    return f"process {owner.pid} on host {owner.hostname.partition('?pidns-')[0]}"  # its PID namespace is no name
