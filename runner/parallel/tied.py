"""Parameters that several modules share (tied weights), while the model is sharded among ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from runner.base.errors import UsageError, raised_on_all_ranks

NOT_ALIKE = "give both the same style in Plan.tensor"


@dataclass(frozen=True)
class Shared:
    """A parameter that several modules have: its names, and where it is, the first one first."""

    names: tuple[str, ...]
    places: tuple[tuple[nn.Module, str], ...]

    def tie(self) -> None:
        """Make it one parameter again, the first one's."""
        (first, its), *others = self.places
        for module, key in others:
            module.register_parameter(key, first.get_parameter(its))


def shared_parameters(model: nn.Module) -> list[Shared]:
    """The parameters of which a model has several names."""
    found: dict[int, list[tuple[str, tuple[nn.Module, str]]]] = {}
    for prefix, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{key}" if prefix else key
            found.setdefault(id(parameter), []).append((name, (module, key)))
    several = [users for users in found.values() if len(users) > 1]
    return [Shared(*(tuple(part) for part in zip(*users, strict=True))) for users in several]


@raised_on_all_ranks()
def tie_sharded(shared: Sequence[Shared]) -> None:
    """Tie what tensor parallelism has sharded, module by module.

    Raises:
        UsageError: some modules have another shard of the parameter than others.
    """
    for one in shared:
        ways = {placements_of(module.get_parameter(key)) for module, key in one.places}
        if len(ways) > 1:
            raise UsageError(
                f"{one.names[1]} is tied to {one.names[0]}, and the two are not sharded alike", fix=NOT_ALIKE
            )
        one.tie()


def placements_of(parameter: nn.Parameter) -> str:
    """The placements of a parameter, as a text that can be compared; "" if it is not sharded."""
    return str(getattr(parameter, "placements", ""))


@dataclass(frozen=True)
class Tied:
    """A parameter that several pipeline stages have. ``places``: each such stage, the first one first, and its name there."""

    places: tuple[tuple[int, str], ...]

    @property
    def name(self) -> str:
        return self.places[0][1]


def untie(stages: Sequence[nn.Module]) -> list[Tied]:
    """Give each stage that shares a parameter with an earlier one a copy of its own. Returns what was shared."""
    places: dict[int, dict[int, str]] = {}
    for number, stage in enumerate(stages):
        copies: dict[int, nn.Parameter] = {}
        for name, parameter in [*stage.named_parameters(remove_duplicate=False)]:
            found = places.setdefault(id(parameter), {number: name})
            if number == min(found):
                continue
            found.setdefault(number, name)
            own = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            module, _, key = name.rpartition(".")
            setattr(stage.get_submodule(module), key, copies.setdefault(id(parameter), own))
    return [Tied(tuple(found.items())) for found in places.values() if len(found) > 1]
