"""The Python stack of a worker, taken from outside: also while it waits in C, holds the GIL, or was stopped.

``Inside`` sees the main thread's call of torch.distributed from within the worker: not every wait for other ranks is a collective
that is recorded, as making a process group and NCCL's communicator is none; and a signal from outside might end the wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from runner.base.command_name import MODULES, SCRIPT
from runner.base.process_stat import process_stat
from runner.versions.features import FEATURES
from runner.versions.torch_build import torch_build

# A signal that no library is known to use. faulthandler's handler is C, so it needs no GIL.
_SIGNAL = signal.SIGRTMIN + 9
_QUIET_SECONDS = 0.2  # seconds without a new line after which a stack counts as written
_WITHIN_SECONDS = 2.0
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')

# This package's folder, as frames name it: a user's folder may be called runner, too.
PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"

_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", PACKAGE)
_OWN = ("launch/program.py", "starting/dispatch.py", "starting/launch.py", "cli.py", "__main__.py", "guard/")
_BELOW = (
    *(f"{PACKAGE}{part}" for part in _OWN),
    "<frozen runpy>",
    f"{os.sep}runpy.py",  # Python 3.10
)
_STARTED = (SCRIPT, f"{MODULES[1]}.py")  # the console script, and its module
# A rank whose innermost frames are of these waits for other ranks: torch's collectives, the runner's, DDP's in backward().
_COLLECTIVES = (
    "/torch/distributed/",
    f"{PACKAGE}backends/",
    f"{PACKAGE}torchrun/",
    f"{PACKAGE}rendezvous/",
    "/horovod/",
    "/mpi4py/",
    "/torch/autograd/graph.py",
)
# Whether torch tells of each collective in which a rank waits.
IS_RECORDED = not FEATURES["recorder"].shortfall(torch_build().version)
_DDP = ("/torch/autograd/graph.py", "/torch/nn/parallel/distributed.py")  # a backward pass, and what precedes it
_CALLS = (
    "/torch/distributed/",
    f"{PACKAGE}backends/",
    f"{PACKAGE}torchrun/",
    "/mpi4py/",
    *(() if IS_RECORDED else _DDP),
)
_OPERATOR = ("/torch/_ops.py",)  # also of a functional collective
_WORK = ("/torch/distributed/checkpoint/",)  # which reads and writes files, too

# Where the runner waits for the device, on which collectives may wait for other ranks: files and functions.
_SYNCS = (
    (f"{PACKAGE}training/step_metrics.py", "gather"),
    (f"{PACKAGE}training/run.py", "sum"),
    (f"{PACKAGE}training/evaluation.py", "evaluate"),
    (f"{PACKAGE}training/finite.py", "check_finite"),
    (f"{PACKAGE}training/replicas.py", "check"),
    (f"{PACKAGE}training/checkpoint/checkpoints.py", "copy"),
    (f"{PACKAGE}versions/torch_private.py", "copy_each"),
    ("/torch/nn/parallel/distributed.py", ""),  # buffers, which are sent from C++
    ("/torch/amp/grad_scaler.py", ""),  # anywhere
    ("/torch/cuda/", "synchronize"),
)


_taking: dict[int, threading.Lock] = {}  # by the file: ranks of a host have one importer


class Frame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({os.path.basename(self.file)}:{self.line})"


def new_file() -> IO[Any]:
    """Make a file that worker and guard share, before the fork."""
    if hasattr(os, "memfd_create"):  # no folder has to be writable
        return open(os.memfd_create("shared"), "w+b")
    return tempfile.TemporaryFile()


def let_show(file: IO[Any]) -> None:
    """Let the guard take this worker's stacks from now on. A crash in C also shows the stack, on stderr."""
    faulthandler.register(_SIGNAL, file=file, all_threads=True, chain=False)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is no file
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=False)


def take(worker: int, file: IO[Any]) -> str:
    """Return the stacks of all threads of a worker, "" if it does not show them. A stopped worker goes on."""
    with _taking.setdefault(file.fileno(), threading.Lock()):
        return _take(worker, file.fileno())


def _take(worker: int, descriptor: int) -> str:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)  # the worker has the same position
    if not worker or not catches(worker, _SIGNAL):  # it has just been forked, and the signal would end it
        return ""
    with contextlib.suppress(ProcessLookupError):
        _signal_main_thread(worker)
        os.kill(worker, signal.SIGCONT)
    end, size, since = time.monotonic() + _WITHIN_SECONDS, 0, time.monotonic()
    while time.monotonic() < end and (size == 0 or time.monotonic() - since < _QUIET_SECONDS):
        time.sleep(0.02)
        if (now := os.fstat(descriptor).st_size) != size:
            size, since = now, time.monotonic()
    return os.pread(descriptor, size, 0).decode(errors="replace")


def _signal_main_thread(worker: int) -> None:
    """Have a process show its stacks: by its main thread, which in a stopped one would go on before another thread did."""
    try:
        ctypes.CDLL(None).tgkill(worker, worker, _SIGNAL)
    except (AttributeError, TypeError):  # glibc before 2.30, as in RHEL 8
        os.kill(worker, _SIGNAL)


def catches(process: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        caught = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process}/status").read_text("utf-8", "replace"))[0]
    except (OSError, IndexError):
        return True
    return bool(int(caught, 16) >> (number - 1) & 1)


def main_thread(text: str) -> list[Frame]:
    """Return the main thread's frames, innermost first: faulthandler writes that thread last."""
    block = re.split(r"\n\s*\n", text.strip())[-1]
    return [Frame(found["file"], int(found["line"]), found["function"]) for found in _FRAME.finditer(block)]


def waits(frames: Sequence[Frame]) -> bool:
    """Whether a rank with this stack waits for others, or for its device."""
    return bool(frames) and (_is_sync(frames[0]) or any(_is_of(frame.file, _COLLECTIVES) for frame in frames[:6]))


def place(frames: Sequence[Frame]) -> str:
    """Return the place of a rank: the collective and the program's line that called it, or the innermost line."""
    if not frames:
        return "a place that it does not show"
    if not waits(frames):  # Python's own frames of an import do not say of what
        return str(next((frame for frame in frames if not frame.file.startswith("<frozen ")), frames[0]))
    called = [frame for frame in frames if _is_of(frame.file, _COLLECTIVES)] or frames
    inner = next((frame for frame in called if frame.file.endswith("distributed_c10d.py")), called[0])
    caller = next((frame for frame in frames if not _is_of(frame.file, _LIBRARIES)), None)
    return f"{inner.function}, called in {caller}" if caller is not None else str(inner)


def place_in_kernel(worker: int) -> str:
    """Return where a process without a stack waits, such as for a file system that hangs; "" if unknown."""
    stat = process_stat(worker)
    if stat is None:
        return ""
    with contextlib.suppress(OSError):
        where = Path(f"/proc/{worker}/wchan").read_text()
        return f"state {stat.state}, in the kernel's {where}" if where not in ("", "0") else f"state {stat.state}"
    return ""


def of_program(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames without the runner's own below the program."""
    own = len(frames)
    while own and (_is_of(frames[own - 1].file, _BELOW) or os.path.basename(frames[own - 1].file) in _STARTED):
        own -= 1
    return list(frames[:own])


class Inside:
    """The main thread's call of torch.distributed, sampled by another thread now and then."""

    def __init__(self) -> None:
        self._frame: FrameType | None = None  # of the call; kept, as no other one can then be taken for it
        self._number = 0

    @property
    def keeps_a_call(self) -> bool:
        """Whether it keeps a call's variables, such as tensors, also after the call has ended."""
        return self._frame is not None

    def forget(self) -> None:
        """Forget the call: the next look finds another one."""
        self._frame = None

    def look(self) -> int:
        """Return a number that differs for each call; 0 outside of any."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        call = None if frame is None else _call_of(frame)
        if call is not self._frame:
            self._frame, self._number = call, self._number + 1
        return 0 if call is None else self._number


def _call_of(frame: FrameType) -> FrameType | None:
    """Return the frame of the call that the program, or another library, has made; None outside of one."""
    found: FrameType | None = None
    outer: FrameType | None = frame
    while outer is not None and _is_of(outer.f_code.co_filename, _OPERATOR):
        outer = outer.f_back
    if outer is not None and _is_of(outer.f_code.co_filename, _WORK):
        return None
    while outer is not None and _is_of(outer.f_code.co_filename, _CALLS):
        found, outer = outer, outer.f_back
    return found


def _is_sync(frame: Frame) -> bool:
    function = frame.function.rpartition(".")[2]
    return any(file in frame.file and name in ("", function) for file, name in _SYNCS)


def _is_of(file: str, parts: Sequence[str]) -> bool:
    return any(part in file for part in parts)
