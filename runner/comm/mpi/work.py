"""The handles that callers of torch.distributed wait on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch.distributed import Work

from runner.comm.mpi.engine import Engine
from runner.comm.mpi.tasks import Task

_NONE = timedelta(0)


class MPIWork(Work):
    """A collective or a message that has been asked for.

    Args:
        results: the tensors that hold its results when it is over.
        sender: asks for the group's rank that a message came from, where any might have sent it.
    """

    def __init__(
        self,
        engine: Engine,
        task: Task,
        results: Sequence[torch.Tensor],
        sender: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._engine, self._task, self._results, self._sender = engine, task, list(results), sender
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._end: torch.futures.Future[None] | None = None
        self._untold = [True]

    def wait(self, timeout: timedelta = _NONE) -> bool:
        """Carry MPI's calls on until this one is over.

        Raises:
            DistBackendError: it is not over in time; with a timeout of the caller's own it goes on.
            Exception: what the call itself has failed with.
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
        if self._sender is None:
            return -1
        return self._sender()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if self._future is None:
            devices: list[int | str | torch.device] = list({one.device for one in self._results if not one.is_cpu})
            self._end = torch.futures.Future(devices=devices)
            # Only what a callback raises is an error for those who wait in C++, as DDP does; set_exception() is not.
            self._future = self._end.then(self._outcome)
            self._task.on_end = self._tell
            if self._task.is_over:
                self._tell()
            else:
                self._engine.carry_on_now(self._task)
        return self._future

    def _tell(self) -> None:
        """The program's callbacks run in here."""
        try:
            self._untold.pop()
        except IndexError:
            return  # two threads came to this point, one as it ended the call, one as it asked for the future
        assert self._end is not None
        self._end.set_result(None)

    def _outcome(self, _: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._task.error is not None:
            raise self._task.error
        return self._results


def seconds_of(timeout: timedelta, default: float) -> float:
    """The seconds of a call's own timeout, or the group's."""
    return timeout.total_seconds() if timeout > _NONE else default  # torch's word for none is -1 ms
