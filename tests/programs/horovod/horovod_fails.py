"""Rank 1 fails while the others continue to the next allreduce of Horovod's."""

import horovod.torch as hvd
import torch

hvd.init()
for step in range(100):
    if step == 3 and hvd.rank() == 1:
        raise ValueError("no more data")
    hvd.allreduce(torch.ones(4), name="x")
