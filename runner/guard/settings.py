"""Settings of a rank's guard: the process that its launcher has started, the texts that it prints, and what it watches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

from runner.launch.siblings import Siblings


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The process that the launcher started: its variables, descriptors and limits.

    Attributes:
        group: its process group.
        environment: its variables.
        ignored: signals that it ignores, as under nohup.
        descriptors: the agent's own descriptors of what the process has open, by their numbers there: 0 to 2, and Hydra's.
    """

    process: int
    parent: int
    group: int
    environment: Mapping[str, str]
    umask: int
    affinity: tuple[int, ...]
    ignored: tuple[int, ...]
    descriptors: Mapping[int, int]

    @property
    def is_on_terminal(self) -> bool:
        return 0 in self.descriptors and os.isatty(self.descriptors[0])

    @property
    def hydra(self) -> dict[str, str]:
        """The variable that names the connection to Hydra, with this process's number of it."""
        numbers = [number for wanted, number in self.descriptors.items() if wanted > 2]
        return {"PMI_FD": str(numbers[0])} if numbers else {}

    def close(self) -> None:
        """Close the agent's descriptors: a launcher waits until no process holds its pipes."""
        for number in self.descriptors.values():
            os.close(number)


def origin_of(message: dict[str, Any], descriptors: list[int]) -> Origin:
    """Return the origin that a proxy has sent."""
    return Origin(
        process=message["process"],
        parent=message["parent"],
        group=message["group"],
        environment={os.fsdecode(name): os.fsdecode(value) for name, value in message["environment"].items()},
        umask=message["umask"],
        affinity=tuple(message["affinity"]),
        ignored=tuple(message["ignored"]),
        descriptors=dict(zip(message["numbers"], descriptors, strict=True)),
    )


@dataclass(frozen=True, kw_only=True)
class Words:
    """The texts that the guard prints, and when it prints them."""

    label: str  # how messages name this process
    rank: int = 0
    size: int = 1
    # The message about a worker that has not met the others in time (None), or has ended before (its exit code).
    no_rendezvous: Callable[[int | None], str]
    find_siblings: Callable[[], Siblings] = Siblings  # what the other ranks of this host run
    is_reporting: bool  # whether this rank prints what concerns all ranks: one of them does
    how_to_resume: str  # how to resume a training that has made steps; "" for a tool's
    is_shown_to_the_end: bool = True  # the launcher shows its ranks' output also after it was told to end


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The limits and events that the guard watches beside its worker's end."""

    rendezvous_timeout: float  # seconds
    hang_after: float = 0.0  # seconds without progress; 0: forever
    save_within: float = 0.0  # seconds in which a checkpoint is written, or hang_after if that is more
    in_collective: float = 0.0  # seconds in one collective where no steps are reported; 0: forever
    in_call: float = 0.0  # seconds in one call of torch.distributed where no steps are reported and no rank prepares anything; 0: forever
    trains: bool = False  # whether the target may be a workload, which is busy also where it prepares its training
    launcher: Callable[[], int] = lambda: 0  # the id of the process whose end also ends the ranks, 0 for none
    is_hub: bool = False  # of the link between the guards
    log_folder: Path | None = None  # where the rank's state and output are written
    prefixes_output: bool = False  # with the rank
    notice: Signals | Path | None = None  # how a script is told to save: this signal, or this file
    passed: float = 0.0  # seconds since the job began, before this start
    notice_within: float | None = None  # seconds until its time limit is near
    script_saves_within: float = 30.0  # seconds from SIGTERM, of which a script is told, until it is to have ended
    restarts: int = 0  # how often all ranks are started again after a failure
    found: bytes = b""  # what the agent has found out about this rank, for its worker
    names: Mapping[str, Any] = field(default_factory=dict)  # rank, size, local_rank and host, for the state

    @property
    def is_first_on_host(self) -> bool:
        """Whether this rank is the first of its host, or may be."""
        return not self.names.get("local_rank")


class Refused(Exception):
    """Raised if a process cannot become a rank: with the line to print ("" for none), the exit code, and the seconds until then."""

    def __init__(self, line: str, code: int, after: float = 0.0) -> None:
        super().__init__(line)
        self.line, self.code, self.after = line, code, after
