"""The progress engine of a process: it progresses the MPI calls of all its groups, collectives and messages.

Each call is a ``MPITask``: a generator that starts non-blocking MPI calls and yields their requests. A program thread that
waits for a task tests it and progresses all others, too; while none waits, a thread of the engine does. Only one thread at a
time progresses tasks (it has the turn), so the generators need no locks.

The collectives of a communicator have an ``Order``: one runs at a time, and the next begins when that one is done and its
callbacks have run; collectives begun in such a callback come before those that wait. So ranks that begin collectives in the
same order, even from several threads, make MPI's calls in the same order, provided that they call a work's get_future()
before they begin the next collective.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from runner.backends.gpu import current_device, take_device
from runner.backends.mpi4py.members import Members
from runner.backends.mpi4py.messages import Arrival
from runner.backends.mpi4py.tasks import MPITask, Order
from runner.backends.mpi4py.waiting import Backoff, Cores
from runner.base.errors import EXIT_FAILURE
from runner.rendezvous.methods.mpi_library import abandoned

_FEW = 8  # rounds of a wait before it reads the clock
_AT_A_TIME = 16  # tests of a collective in one round: a test takes 0.3 µs, a round 2 µs
_LOOK = 0.2  # seconds between two checks of time limits and of ranks that have left, while a call takes long
_GRACE = 3.0  # seconds that a call gets after one of its ranks has left, whose data may still be on its way
_SWEEPS = 0.1  # the fraction of the time that may be spent on messages that no thread waits for
_FEW_MESSAGES = 64
_AT_ONCE = 1e-3  # seconds after a call's begin in which a wait for it counts as AT_ONCE
_LINGERS = 5e-3  # seconds after a call for which a thread keeps watch, if the program waits at once
_HEARTBEAT = 1.0  # seconds that a thread sleeps at most: another thread's blocking call has a time limit, too


class _Habit(enum.Enum):
    """How the program last waited for an asynchronous call."""

    AT_ONCE = enum.auto()
    LATER = enum.auto()
    BY_FUTURE = enum.auto()  # in C++, as DDP does


class ProgressEngine:
    """The progress engine of a process."""

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self.reserved_for: Order | None = None  # the order whose next call may be a blocking one
        self.may_block = False  # whether the thread that progresses tasks waits anyway
        self._turn = threading.Lock()  # held by the thread that progresses tasks
        self._orders: dict[Order, None] = {}  # orders with something to do
        self._messages: dict[MPITask, None] = {}  # open messages
        self._awaited: list[MPITask] = []  # tasks that program threads wait for; these threads progress all tasks
        self._absent: list[int] = []  # one entry for each program thread that runs callbacks instead
        # The engine's threads, each by the lock on which it parks. The first carrier progresses tasks. Threads that are not
        # carriers are parked, or run callbacks, which may themselves wait for a call.
        self._carriers: dict[threading.Lock, None] = {}
        self._parked: list[threading.Lock] = []
        self._own = threading.local()  # in an engine's thread: its lock
        self._stuck: list[MPITask] = []  # failed tasks, kept because MPI may still use their memory
        self._swept, self._next_sweep = 0, 0.0  # messages left by the last sweep, and when the next is due
        self._next_look = 0.0
        self._habit: _Habit | None = None
        self._lingering: list[threading.Lock] = []  # parked for a short time only
        self._lingers_until = 0.0
        self.wake()

    def begin(self, task: MPITask, *, is_awaited: bool = False) -> None:
        """Begin a message at once, so that messages between two ranks keep their order; queue a collective.

        Args:
            is_awaited: the caller calls ``wait`` next, which begins it.
        """
        order = task.order
        if order is None:
            if task.move_on():
                task.is_over = True
                self._tell(task)
            else:
                self._messages[task] = None
                if len(self._messages) > 2 * self._swept + _FEW_MESSAGES:
                    self._round(None)
        elif order.broken is not None:
            task.error, task.is_over = order.broken, True
        else:
            order.add(task)
            self._orders[order] = None
            if not is_awaited:
                self._round(None)
            if order.broken is not None and not task.is_over:  # it has broken meanwhile
                task.error, task.is_over = order.broken, True

    def wait(self, task: MPITask, limit: float | None = None) -> None:
        """Progress all tasks until a given task is over.

        Args:
            limit: seconds after which this wait is given up; the task continues.

        Raises:
            Exception: the task has failed, or the limit is over.
        """
        if not task.is_over:
            task.is_awaited()
            self._awaited.append(task)
            try:
                self._carry(task, limit)
            finally:
                self._awaited.remove(task)
                if self._orders or self._messages:
                    self.wake()
        if task.error is not None:
            raise task.error

    def expects(self, task: MPITask) -> None:
        """Note that the program is about to wait for this asynchronous call, and how long after its begin."""
        self._habit = _Habit.AT_ONCE if time.monotonic() - task.began < _AT_ONCE else _Habit.LATER

    def carry_on_later(self) -> None:
        """Have a thread of the engine progress a new call, unless the program is likely to wait at once, as last time."""
        if self._habit is _Habit.AT_ONCE:
            self._lingers_until = time.monotonic() + _LINGERS
            if self._lingering:
                return
        self.wake()

    def carry_on_now(self, task: MPITask) -> None:
        """Have a thread of the engine progress this call, as the program waits for it by a future."""
        task.is_awaited()
        self._habit = _Habit.BY_FUTURE
        self.wake()

    def is_beside_computing(self) -> bool:
        """Whether the program probably computes now, before it waits for an asynchronous call."""
        return self._habit is _Habit.LATER and not self._awaited

    def wake(self) -> None:
        """Have a thread of the engine progress the open tasks, if none does."""
        if self._carriers:
            return
        try:
            parking = self._parked.pop()
        except IndexError:
            parking = threading.Lock()
            work = threading.Thread(target=self._run, args=(parking, current_device()), name="mpi4py", daemon=True)
            work.start()
        self._carriers[parking] = None  # here and not in the thread, so that no second one is woken meanwhile
        with contextlib.suppress(RuntimeError):  # a new thread has not parked
            parking.release()

    def finish(self, done: Callable[[], bool], limit: float) -> bool:
        """Progress all tasks until ``done`` returns True. Returns whether it does within a limit in seconds."""
        backoff, deadline = Backoff(self.cores.own()), time.monotonic() + limit
        while not done() and time.monotonic() < deadline:
            if self._round(None, may_block=True):
                backoff.moved()
            backoff.pause()
        return done()

    def drop(self, order: Order, error: Exception) -> None:
        """Fail all remaining collectives of a communicator."""
        task = order.oldest()
        if task is not None:
            self._fail(task, error)

    def look_after(self, task: MPITask) -> None:
        """Progress the tasks once, this one included if it is a message."""
        self._round(task)

    def has_messages(self, members: Members) -> bool:
        return any(task.members is members for task in list(self._messages))

    def _carry(self, task: MPITask, limit: float | None) -> None:
        looks, backoff = 0, None
        while not task.is_over:
            is_early = backoff is None or not backoff.naps
            moved = self._round(task, may_block=True, looks=_AT_A_TIME if is_early else 1)
            looks += 1
            if looks < _FEW or task.is_over:
                continue
            if backoff is None:
                backoff = Backoff(self.cores.own())
            elif moved:
                backoff.moved()
            waited = backoff.pause()
            if limit is not None and waited > limit:
                raise task.members.too_late(task.call, limit)
            if waited > _LOOK:
                if time.monotonic() > self._next_look:
                    self.wake()  # the engine's thread checks for ranks that have left
                if time.monotonic() > task.deadline:
                    self._fail(task, task.members.too_late(task.call, task.limit))

    def _round(self, wanted: MPITask | None, *, may_block: bool = False, looks: int = 1) -> bool:
        """Progress the tasks once, unless another thread does so now. Returns whether any has progressed.

        Args:
            wanted: a message to be tested, even if not all messages are.
            looks: how often a collective is tested, if it is the only open task.
        """
        if not self._turn.acquire(blocking=False):
            return False
        ended: list[MPITask] = []
        moved = False
        self.may_block = may_block
        try:
            orders = list(self._orders)
            if len(orders) > 1 or self._messages:
                looks = 1
            for order in orders:
                moved |= self._advance(order, ended, looks)
            if self._messages:
                if wanted is not None and wanted.order is None and not wanted.is_over:
                    moved |= self._try(wanted, ended)
                if len(self._messages) > 2 * self._swept + _FEW_MESSAGES or time.perf_counter() > self._next_sweep:
                    moved |= self._sweep(ended)
        finally:
            self._turn.release()
            for task in ended:
                self._tell(task)
        return moved

    def _advance(self, order: Order, ended: list[MPITask], looks: int) -> bool:
        moved = False
        while (task := order.next()) is not None:
            request = task.request
            if not task.move_on(looks):
                return moved or task.request is not request
            moved, task.is_over = True, True
            if self.reserved_for is order:
                self.reserved_for = None
            if task.on_end is not None:
                order.telling.append(threading.get_ident())  # the thread that runs the callbacks, after the turn
                ended.append(task)
            order.under_way = None
        if order.is_idle():
            self._orders.pop(order, None)
            if not order.is_idle():  # a collective has been added meanwhile
                self._orders[order] = None
        return moved

    def _try(self, message: MPITask, ended: list[MPITask]) -> bool:
        if not message.move_on():
            return False
        del self._messages[message]
        message.is_over = True
        ended.append(message)
        return True

    def _sweep(self, ended: list[MPITask]) -> bool:
        """Test all open messages."""
        start, found = time.thread_time(), len(ended)  # not the clock: another process may have had the core meanwhile
        for message in list(self._messages):
            self._try(message, ended)
        computed = time.thread_time() - start
        self._swept, self._next_sweep = len(self._messages), time.perf_counter() + computed / _SWEEPS
        return len(ended) > found

    def _tell(self, task: MPITask) -> None:
        """Run an ended task's callbacks. Until they have run, its order begins only collectives from these callbacks."""
        if task.on_end is None:
            return
        parking: Any = getattr(self._own, "parking", None)
        is_carrier = parking in self._carriers  # False if it already runs callbacks, and waits in one
        try:
            if is_carrier:
                self._carriers.pop(parking)
            else:
                self._absent.append(0)
            if len(self._orders) > 1 or self._messages:
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    self.wake()
            task.on_end()
        finally:
            if task.order is not None:
                task.order.telling.remove(threading.get_ident())
            if is_carrier:
                self._carriers[parking] = None
            else:
                self._absent.pop()

    def _run(self, parking: threading.Lock, device: torch.device) -> None:
        """A thread of the engine: progresses tasks that no program thread waits for, and checks time limits."""
        self._own.parking = parking
        try:
            take_device(device)
        except Exception:  # as below: this thread is the carrier already, so no other would be woken
            traceback.print_exc()
        backoff: Backoff | None = None
        while True:
            try:
                backoff = self._go_on(parking, backoff)
            except Exception:  # any error: without this thread no call would have a time limit
                traceback.print_exc()
                time.sleep(_LOOK)

    def _go_on(self, parking: threading.Lock, backoff: Backoff | None) -> Backoff | None:
        if self._others_carry(parking) or not self._has_work():
            self._park(parking)
            backoff = None
        else:
            backoff = backoff or Backoff(self.cores.own())
            if self._round(None, may_block=True):
                backoff.moved()
            backoff.pause()
        if (self._orders or self._messages) and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _LOOK
            self._look(parking)
        return backoff

    def _has_work(self) -> bool:
        """Whether a task is open for which the program is not likely to wait at once."""
        if not self._lingers_for_a_while():
            return bool(self._orders or self._messages)
        begun = time.monotonic() - _AT_ONCE
        under_way = [order.under_way for order in list(self._orders)]
        return any(task is None or task.began < begun for task in under_way + list(self._messages)[:1])

    def _lingers_for_a_while(self) -> bool:
        return self._habit is _Habit.AT_ONCE and time.monotonic() < self._lingers_until

    def _others_carry(self, parking: threading.Lock) -> bool:
        return len(self._awaited) > len(self._absent) or next(iter(list(self._carriers)), parking) is not parking

    def _park(self, parking: threading.Lock) -> None:
        """Sleep until another thread wakes this one, or until time limits are to be checked."""
        parking.acquire(blocking=False)
        self._parked.append(parking)
        self._carriers.pop(parking, None)
        lingers = self._lingers_for_a_while()
        if lingers:
            self._lingering.append(parking)
        # A thread that adds a task reads _parked and _carriers afterwards, so check once more before sleeping.
        if lingers or self._others_carry(parking) or not self._has_work():
            is_open = self._orders or self._messages
            parking.acquire(timeout=_AT_ONCE if lingers else _LOOK if is_open else _HEARTBEAT)
        if lingers:
            self._lingering.remove(parking)
        with contextlib.suppress(ValueError):  # it has been woken, and is a carrier
            self._parked.remove(parking)
            self._carriers[parking] = None

    def _look(self, parking: threading.Lock) -> None:
        """Fail the tasks that have taken too long, or will never end because a rank has left."""
        now = time.monotonic()
        awaited = [task for task in list(self._messages) if task.deadline < math.inf]
        tasks = [*(order.oldest() for order in list(self._orders)), *awaited]
        late = [task for task in tasks if task is not None and not task.is_over and now - task.began > _LOOK]
        if not late:
            return
        self._carriers.pop(parking, None)  # the store may be slow, so another thread continues meanwhile
        self.wake()
        for task in late:
            members, order, call = task.members, task.order, task.call
            if order is not None and order.under_way is task:
                members.say_that_this_rank_waits(order.number)
            if now > task.deadline:
                self._fail(task, members.too_late(call, task.limit))
            elif now - max(task.began, members.noticed(call)) > _GRACE:
                self._fail(task, members.will_not_end(call))
        self._carriers[parking] = None

    def _fail(self, task: MPITask, error: Exception) -> None:
        """Fail a task that MPI has not completed. If it is a collective, its communicator cannot be used any more."""
        order = task.order
        if not self._turn.acquire(timeout=_GRACE):
            if self.reserved_for is order is not None:
                end_process(error)  # a thread is in its blocking call, where it cannot be interrupted
            return  # the next check tries again
        try:
            if task.is_over:
                return
            if order is None:
                failed = [task]
                if isinstance(task.request, Arrival):
                    task.request.give_up()  # MPI knows nothing of it yet, and can be finalised
                else:
                    abandoned.set()
                del self._messages[task]
            else:
                failed = order.give_up(error)
                self._orders.pop(order, None)
                if self.reserved_for is order:
                    self.reserved_for = None
            self._stuck += failed[:1]
            for one in failed:
                one.error, one.is_over = error, True
        finally:
            self._turn.release()
        for one in failed:
            if one.on_end is not None:
                one.on_end()


def end_process(error: Exception) -> NoReturn:
    """Print the error and end the process, as NCCL's watchdog does: no exception can reach a thread inside MPI."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    print(f"runner: {type(error).__name__}: {error}; a thread is in MPI's call, so the process ends", file=sys.stderr)
    os._exit(EXIT_FAILURE)
