"""Prints the cores of the process, of all of its threads, and of a data loader's worker, after threads and collectives were used."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist


class Cores(torch.utils.data.Dataset[list[int]]):
    """One sample: the cores of the process that reads it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> list[int]:
        return sorted(os.sched_getaffinity(0))


if __name__ == "__main__":
    dist.init_process_group()
    dist.all_reduce(torch.ones(1000))
    torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    loader = torch.utils.data.DataLoader(Cores(), batch_size=None, num_workers=1)
    print(
        json.dumps(
            {
                "rank": dist.get_rank(),
                "cores": sorted(os.sched_getaffinity(0)),
                "threads": sorted(
                    {core for task in os.listdir("/proc/self/task") for core in os.sched_getaffinity(int(task))}
                ),
                "worker": next(iter(loader)),
                "openmp": torch.get_num_threads(),
            }
        ),
        flush=True,
    )
    dist.destroy_process_group()
