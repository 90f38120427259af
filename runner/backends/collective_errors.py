"""Make a problem of any rank an error on all ranks, so that they end together and one line tells it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@raised_on_all_ranks()
def agree(
    problem: RunnerError | str | None,
    kind: type[RunnerError] = UsageError,
    group: ProcessGroup | None = None,
    *,
    fix: str = "",
) -> None:
    """Raise on all ranks of torch.distributed's default group if any of them has a problem. Collective.

    Args:
        problem: this rank's: an error, or what is wrong.
        group: of all ranks, for a thread that has its own.
        fix: how to correct a problem that is no error; "" if that is not known.

    Raises:
        RunnerError: of this kind; a rank has a problem. The message names the hosts that have it, if others have not.
    """
    import torch.distributed as dist

    from runner.backends.comparing import bounds

    size = dist.get_world_size(group)
    ((_, has),) = bounds([int(problem is not None)], group) if size > 1 else [(0, problem is not None)]
    if not has:
        return
    text, its_fix = (problem.message, problem.fix) if isinstance(problem, RunnerError) else (problem, fix)
    found: list[tuple[str | None, str, str]] = [(text, its_fix, socket.gethostname())] * size
    if size > 1:
        dist.all_gather_object(found, found[0], group=group)
    hosts: dict[str, dict[str, None]] = {}  # of each problem, in the order of ranks
    for text, _, host in found:
        if text is not None:
            hosts.setdefault(text, {})[host] = None
    everywhere = len({host for _, _, host in found})
    where = {text: f" (host {', '.join(on)})" if len(on) < everywhere else "" for text, on in hosts.items()}
    fixes = dict.fromkeys(its_fix for text, its_fix, _ in found if text is not None and its_fix)
    raise kind("; ".join(text + on for text, on in where.items()), fix="; ".join(fixes))
