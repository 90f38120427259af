"""Parameters that several modules share (tied weights), while the model is sharded among ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torch import nn

from runner.base.errors import UsageError, raised_on_all_ranks

NOT_ALIKE = "give both the same style in Plan.tensor"
Tied = tuple[tuple[int, str], ...]  # the pipeline stages that have a parameter, the first one first, and its name there


def shared_parameters(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter of which the model has several."""
    found: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found[id(parameter)].append(name)
    return [names for names in found.values() if len(names) > 1]


def tie(model: nn.Module, shared: Sequence[Sequence[str]]) -> None:
    """Make the parameters of these names one again, the first name's."""
    for first, *others in shared:
        for name in others:
            module, _, key = name.rpartition(".")
            model.get_submodule(module).register_parameter(key, model.get_parameter(first))


@raised_on_all_ranks()
def tie_sharded(model: nn.Module, shared: Sequence[Sequence[str]]) -> None:
    """Tie what tensor parallelism has sharded module by module, and refuse modules with other shards of a parameter."""
    for first, *others in shared:
        for name in others:
            if placements_of(model.get_parameter(name)) != placements_of(model.get_parameter(first)):
                raise UsageError(f"{name} is tied to {first}, and the two are not sharded alike", fix=NOT_ALIKE)
    tie(model, shared)


def placements_of(parameter: nn.Parameter) -> str:
    """Return the placements of a parameter, as a text that can be compared; "" if it is not sharded."""
    return str(getattr(parameter, "placements", ""))


def untie(stages: Sequence[nn.Module]) -> list[Tied]:
    """Give each stage that shares a parameter with an earlier one a copy of its own. Return what was shared."""
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
    return [tuple(found.items()) for found in places.values() if len(found) > 1]
