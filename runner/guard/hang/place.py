"""Whether a worker's main thread is in a call of torch.distributed, and whether that is the same call as before.

Not every wait for other ranks is a collective that is recorded: making a process group and NCCL's communicator is none. This is
looked up in the worker, by a thread, as a signal from outside might end the wait.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

from runner.guard.hang.stacks import PACKAGE
from runner.versions.features import FEATURES
from runner.versions.torch_build import torch_build

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


class Inside:
    """The main thread's call of torch.distributed, sampled now and then."""

    def __init__(self) -> None:
        self._frame: FrameType | None = None  # of the call; kept, as no other one can then be taken for it
        self._number = 0

    @property
    def keeps_a_call(self) -> bool:
        """Whether it keeps a call's variables, such as tensors, also after the call has ended."""
        return self._frame is not None

    def forget(self) -> None:
        """Keep nothing: the next look finds another call."""
        self._frame = None

    def look(self) -> int:
        """A number that is another one for each call; 0: it is in none."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        call = None if frame is None else _call_of(frame)
        if call is not self._frame:
            self._frame, self._number = call, self._number + 1
        return 0 if call is None else self._number


def _call_of(frame: FrameType) -> FrameType | None:
    """The frame of the call that the program, or another library, has made; None if this is not within one."""
    found: FrameType | None = None
    outer: FrameType | None = frame
    while outer is not None and _is_of(outer, _OPERATOR):
        outer = outer.f_back
    if outer is not None and _is_of(outer, _WORK):
        return None
    while outer is not None and _is_of(outer, _CALLS):
        found, outer = outer, outer.f_back
    return found


def _is_of(frame: FrameType, parts: tuple[str, ...]) -> bool:
    return any(part in frame.f_code.co_filename for part in parts)
