"""Prints the cores on which its rank may run."""

import os

print(f"cores of rank {os.environ['RANK']}: {','.join(map(str, sorted(os.sched_getaffinity(0))))}", flush=True)
