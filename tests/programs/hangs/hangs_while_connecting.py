"""No rank comes to its first collective: one makes a process group, as NCCL a communicator, and waits for the other in vain."""

import torch
import torch.distributed as dist

from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    wait()


def wait() -> None:
    if dist.get_rank() == 0:
        dist.new_group([0, 1])
    else:
        dist.recv(torch.zeros(1), 0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    wait()
