"""The handles that callers of torch.distributed wait on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch.distributed import Work

from runner.backends.mpi4py.engine import ProgressEngine
from runner.backends.mpi4py.tasks import MPITask

_NONE = timedelta(0)


class MPIWork(Work):
    """A collective or a message that has begun or is queued.

    Args:
        results: the tensors that hold its results when it is over.
        sender: for a receive from any rank, returns the sender's rank in the group.
    """

    def __init__(
        self,
        engine: ProgressEngine,
        task: MPITask,
        results: Sequence[torch.Tensor],
        sender: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._engine, self._task, self._results, self._sender = engine, task, list(results), sender
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._end: torch.futures.Future[None] | None = None
        self._untold = [True]

    def wait(self, timeout: timedelta = _NONE) -> bool:
        """Progress MPI's calls until this one is over.

        Raises:
            DistBackendError: it is not over in time; if ``timeout`` is over, the call itself continues.
            Exception: the call has failed.
        """
        self._engine.expects(self._task)
        self._engine.wait(self._task, timeout.total_seconds() if timeout > _NONE else None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._task.is_over:
            self._engine.look_after(self._task)
        return self._task.is_over

    def is_success(self) -> bool:
        return self._task.is_over and self._task.error is None

    def exception(self) -> Exception | None:
        return self._task.error

    def result(self) -> list[torch.Tensor]:
        return self._results

    def source_rank(self) -> int:
        return -1 if self._sender is None else self._sender()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if self._future is None:
            devices: list[int | str | torch.device] = list({one.device for one in self._results if not one.is_cpu})
            self._end = torch.futures.Future(devices=devices)
            # A waiter in C++, such as DDP, sees an exception only if a callback raises it, not from set_exception().
            self._future = self._end.then(self._outcome)
            self._task.on_end = self._tell
            if self._task.is_over:
                self._tell()
            else:
                self._engine.carry_on_now(self._task)
        return self._future

    def _tell(self) -> None:
        """Complete the future, once; this runs the program's callbacks."""
        try:
            self._untold.pop()
        except IndexError:
            return  # another thread has done it: one ends the call, one asks for the future
        assert self._end is not None
        self._end.set_result(None)

    def _outcome(self, _: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._task.error is not None:
            raise self._task.error
        return self._results


def seconds_of(timeout: timedelta, default: float) -> float:
    """A call's own timeout in seconds, or else the group's."""
    return timeout.total_seconds() if timeout > _NONE else default  # torch passes -1 ms for none
