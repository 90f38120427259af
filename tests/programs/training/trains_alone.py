"""Trains in one process, whatever ranks there are; ``by MPI`` it adds its gradients."""

import importlib
import sys

import torch

model = torch.nn.Linear(4, 1)
model(torch.rand(8, 4)).pow(2).mean().backward()
if sys.argv[1:] == ["by MPI"]:
    MPI = importlib.import_module("mpi" + "4py.MPI")
    MPI.COMM_WORLD.allreduce(1)
print("trained", flush=True)
sys.exit(0)
