"""What a run would refuse of a layout for the sake of the model or its optimizer, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from runner.base.errors import UsageError
from runner.parallel import precision
from runner.parallel.registry import traits_of
from runner.parallel.support import check_divisible, check_even, check_zero, described
from runner.tools.plan.layouts import Candidate
from runner.tools.plan.memory import is_wrapped
from runner.tools.plan.tracing import Tracer


@contextmanager
def reported_in_one_line() -> Iterator[None]:
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


def check_supported(candidate: Candidate, tracer: Tracer) -> None:
    """Check what the strategies do; in a process group that exchanges nothing.

    Raises:
        UsageError: a run would be refused.
    """
    model = tracer.model
    tracer.task.check_stages(candidate.options)
    precision.check(model, candidate.options.precision, will_be_wrapped=is_wrapped(candidate))
    if traits_of(candidate.options.strategy).shards_optimizer:
        check_zero(model)
    if is_wrapped(candidate) or candidate.options.tp > 1:
        check_divisible(model)
    if candidate.options.tp > 1:
        check_even(tracer.sharded(candidate.options, casts=False).model, candidate.degrees.shard)
    shards = is_wrapped(candidate) and dist.is_initialized() and dist.get_world_size() > 1
    if shards and tracer.optimizer_problem is not None:
        raise tracer.optimizer_problem
