"""What torch.distributed calls something in 2.14, for older releases: a program that uses such names imports this."""

import torch.distributed as dist

from runner.versions.torch_private import takes_backend_in_python

OLDER = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}


def _monitored_barrier(group=None, **named):
    """Older releases look whether the group's backend is called gloo."""
    (group or dist.group.WORLD).monitored_barrier(**named)


def _set_timeout(timeout, group=None):
    """Older releases know a function of their own backends only."""
    (group or dist.group.WORLD).set_timeout(timeout)


def sum_of_products(factor):
    """Return the operation that multiplies by a factor and sums. Before 2.14 torch has no public name for it."""
    return (dist.ReduceOp.PREMUL_SUM if callable(dist.ReduceOp.PREMUL_SUM) else dist._make_nccl_premul_sum)(factor)


for name, older in OLDER.items():
    if not hasattr(dist, name):
        setattr(dist, name, getattr(dist, older))
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = _set_timeout
if not takes_backend_in_python():
    dist.monitored_barrier = _monitored_barrier
