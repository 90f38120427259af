"""Starts a child by multiprocessing's spawn, which has to find this script's own names."""

import multiprocessing
import os


def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(f"rank {os.environ['RANK']}: {pool.map(double, [21])}", flush=True)
