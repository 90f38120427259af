"""The secret by which the ranks of a job recognise one another where MPI cannot carry a key.

It is the value of ``RUNNER_SECRET``, or else a file that only its owner can read, made at first use in a home folder that
the job's hosts share. Without either (the home folder cannot be written, or ``RUNNER_SECRET`` is empty), anybody who
knows the job's name can pass for one of its ranks: docs/site/trust.md says whom one trusts then.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import sys
from pathlib import Path

from runner.base.errors import UsageError
from runner.launch.context import LaunchContext

VARIABLE = "RUNNER_SECRET"
_BYTES = 32


def job_key(context: LaunchContext) -> bytes:
    """The job's key: the same on all its ranks, and a different one for every job.

    Raises:
        UsageError: others can read the file with the secret.
    """
    job = context.job_id or f"{context.user_endpoint}"
    secret = _secret(context)
    if not secret and context.rank.value == 0 and VARIABLE not in context.environment:
        print(
            f"runner: no home folder keeps a secret for this job, so whoever reaches its port passes for a rank; set "
            f"{VARIABLE} to a text of your own on all hosts, or to nothing to trust them",
            file=sys.stderr,
            flush=True,
        )
    return derived(secret, f"{job}/{context.size.value}")


def derived(key: bytes, purpose: str) -> bytes:
    """A key for one purpose, from which other keys cannot be computed (HMAC-SHA-256, RFC 2104)."""
    return hmac.digest(key, purpose.encode(), "sha256")


def _secret(context: LaunchContext) -> bytes:
    given = context.environment.get(VARIABLE)
    if given is not None:
        return given.encode()
    path = _file(context)
    if not path.is_absolute():  # no home folder is known
        return b""
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except OSError:
        return b""
    try:
        return _make(path)
    except OSError:  # the home folder does not exist or cannot be written
        return b""


def _file(context: LaunchContext) -> Path:
    folder = context.environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "torch-mpi-runner" / "secret"


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise UsageError(
                f"others can read or change {path}, by which your jobs' ranks know one another",
                fix=f"set {VARIABLE} to a text of your own on all hosts, or remove the file, and a new one is made",
            )
        return file.read()


def _make(path: Path) -> bytes:
    """Make the file, unless another rank is faster. It appears complete, also on a network file system."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".secret-{os.urandom(8).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(os.urandom(_BYTES).hex().encode())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
    return _read(path)
