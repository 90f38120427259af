"""The process that a launcher has started for a rank, as its proxy has described it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
