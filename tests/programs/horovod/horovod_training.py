"""A script written for Horovod, as its documentation has it; knows nothing of the runner.

mpirun -np 2 python -m runner tests/programs/horovod/horovod_training.py
"""

import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(20):
    inputs = torch.randn(16, 8)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True)).backward()
    optimizer.step()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
everyone = hvd.allgather(weights.unsqueeze(0), name="weights")
same = bool((everyone == everyone[0]).all())
print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()} of {hvd.local_size()}: same {same}", flush=True)
