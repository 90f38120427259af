"""A training in which something goes wrong on one rank, at one step."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.launch.launcher_processes import own_process
from runner.training.loop import State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings


def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(600)  # PyDLL does not release it


def raise_an_error() -> None:
    raise ValueError("odd")


def take_all_memory() -> None:
    taken = []
    while True:
        taken.append(torch.ones(10_000_000))


class Odd(TensorDataset):
    """Data that raise an error once a file is there."""

    def __init__(self, path: Path | None, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.path = path

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if self.path is not None and self.path.exists():
            raise_an_error()
        return super().__getitem__(index)


FAULTS: dict[str, Callable[[], object]] = {
    "raise": raise_an_error,
    "exit7": lambda: sys.exit(7),
    "exit-message": lambda: sys.exit("this is why"),
    "exit0": sys.exit,
    "leave": lambda: os._exit(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "GIL": hold_the_gil,
    "sleep": lambda: time.sleep(600),
    "pause": lambda: time.sleep(40),  # as long as the time limit of the job that is queued again
    "skip": lambda: dist.all_reduce(torch.ones(1)),  # one collective more than the others
    "memory": take_all_memory,
    "agent": lambda: os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL),
    "importer": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "proxy": lambda: os.kill(own_process(), signal.SIGKILL),
}


HANGS = ("SIGSTOP", "GIL", "sleep", "pause")  # in the next step: a hook may take longer than that


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    epochs: int = 1000000
    lr: float = 0.01
    fault: str = option("nothing", "", choices=["nothing", "nan", "bit", "fill", "loader", *FAULTS])
    stamp: Path | None = option(None, "a file that is to have the time of the fault", parse=Path)
    at: int = option(5, "the step after which it happens")
    on: int = option(1, "the rank")
    once: Path | None = option(None, "a file that is made at the fault; if it is there, all goes well", parse=Path)
    milliseconds: float = option(5.0, "that each step takes longer")
    late: float = option(0.0, "milliseconds that the rank's forward pass takes longer")


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    data = torch.randn(256, 8)
    model = nn.Linear(8, 1)
    if options.late and run.rank == options.on:
        model.register_forward_pre_hook(lambda *_: time.sleep(options.late / 1000))
    faults: list[Callable[[], object]] = []  # of the next step

    def fail(*_: object) -> None:
        while faults:
            faults.pop()()

    model.register_forward_pre_hook(fail)
    is_odd = options.fault == "loader" and run.rank == options.on
    task = Task(
        model=model,
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=Odd(options.stamp if is_odd else None, data, data.sum(dim=1, keepdim=True)),
        is_classification=False,
    )

    def after(state: State) -> None:
        time.sleep(options.milliseconds / 1000)
        if state.position.step != options.at or run.rank != options.on:
            return
        if options.once is not None:
            if options.once.exists():
                return
            options.once.touch()
        if options.stamp is not None:
            temporary = options.stamp.with_suffix(".new")
            temporary.write_text(str(time.time()))
            temporary.rename(options.stamp)
        if options.fault in HANGS:
            faults.append(FAULTS[options.fault])
        elif options.fault in FAULTS:
            FAULTS[options.fault]()
        elif options.fault == "fill":
            with suppress(OSError), open(options.checkpoint_dir / "filler", "wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(1024))
        elif options.fault == "bit":
            next(state.model.parameters()).data.view(torch.int32).view(-1)[0] ^= 1
        elif options.fault == "nan":
            data.fill_(float("nan"))

    fit(run, task, options, on_step=[after])
