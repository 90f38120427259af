"""Reads LOCAL_RANK and nothing else."""

import os

print(f"local rank {int(os.environ['LOCAL_RANK'])}", flush=True)
