"""What a run would refuse of a layout for the sake of the model or its optimizer, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from runner.errors import UsageError
from runner.parallel.bearing import check_divisible, check_one_dtype, check_steps, described, kinds_of
from runner.parallel.options import traits_of
from runner.parallel.task import Task
from runner.tools.plan.layouts import Candidate
from runner.tools.plan.memory import is_wrapped


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """The context in which a layout is planned: what goes wrong, in the model or in torch, is why that layout is left out.

    Raises:
        UsageError: something has gone wrong.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"it cannot be followed ({described(error)})") from error


def check_borne(candidate: Candidate, task: Task, model: nn.Module) -> None:
    """Check what the strategies do; in a process group that exchanges nothing.

    Raises:
        UsageError: a run would be refused.
    """
    if traits_of(candidate.options.strategy).shards_optimizer:
        check_one_dtype(model)
    if is_wrapped(candidate) or candidate.options.tp > 1:
        check_divisible(model)
    if is_wrapped(candidate) and dist.is_initialized() and dist.get_world_size() > 1:
        kinds = [replace(kind, is_divided=kind.dimensions > 0) for kind in kinds_of(model.parameters())]
        check_steps(task.optimizer, kinds, DeviceMesh("cpu", [0, 1]), compares=False)
