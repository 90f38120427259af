"""Cutting a model into pipeline stages."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from runner.base.errors import UsageError
from runner.parallel.pipeline.stages import balanced, segments, submodel
from runner.parallel.settings import ParallelSettings


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        values = self.features(values)
        for layer in self.layers:
            values = layer(values)
        outputs: Tensor = self.head(values)
        return outputs


CUTS = ["features.2", "layers.0", "layers.2", "head"]
PIECES = [["features.0", "features.1"], ["features.2"], ["layers.0", "layers.1"], ["layers.2"], ["head"]]


def test_the_pieces_are_in_the_order_of_calls_and_begin_at_the_cuts() -> None:
    assert segments(Net(), CUTS) == PIECES
    assert segments(Net(), []) == [[""]]


def test_what_has_no_parameters_is_no_piece_of_its_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2), nn.ReLU())
    assert segments(model, list("012345")) == [["0", "1", "2", "3"], ["4", "5"]]
    assert segments(nn.Sequential(nn.Flatten(), nn.ReLU()), ["1"]) == [["0", "1"]]


@given(st.integers(1, 5), st.data())
def test_stages_one_after_the_other_are_the_model_and_keep_the_names(count: int, data: st.DataObject) -> None:
    model, names = Net(), [name for piece in PIECES for name in piece]
    ends = sorted(data.draw(st.permutations(range(1, 5)))[: count - 1])
    inputs = torch.rand(3, 4)
    values, found = inputs, dict[str, nn.Parameter]()
    for start, end in itertools.pairwise([0, *ends, 5]):
        stage = submodel(model, names, {name for piece in PIECES[start:end] for name in piece})
        own = dict(stage.named_parameters())
        assert not found.keys() & own.keys()
        found |= own
        values = stage(values)
    assert torch.equal(values, model(inputs))
    assert {name: id(one) for name, one in found.items()} == {name: id(one) for name, one in model.named_parameters()}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.integers(1, 8))
def test_the_largest_stage_is_as_small_as_it_can_be(costs: list[float], count: int) -> None:
    if count > len(costs):
        with pytest.raises(UsageError, match=rf"cut into {len(costs)} pieces at most .*, and {count} stages") as caught:
            balanced(costs, count)
        assert caught.value.on_all_ranks
        return

    def largest(ends: tuple[int, ...]) -> float:
        return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *ends, len(costs)]))

    found = balanced(costs, count)
    assert [index for run in found for index in run] == list(range(len(costs)))
    assert all(found)
    best = min(largest(ends) for ends in itertools.combinations(range(1, len(costs)), count - 1))
    assert largest(tuple(run.stop for run in found[:-1])) == pytest.approx(best)


def test_a_parameter_of_what_is_cut_belongs_to_no_stage() -> None:
    model = Net()
    model.features.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(UsageError, match=r"features.scale would belong to no stage, as features is cut") as caught:
        segments(model, CUTS)
    assert caught.value.on_all_ranks


def test_who_has_which_stage() -> None:
    assert ParallelSettings(pp=2).stage_owners == [0, 1]
    assert ParallelSettings(pp=2, pp_schedule="interleaved1f1b", stages_per_rank=3).stage_owners == [0, 1, 0, 1, 0, 1]
    assert ParallelSettings(pp=3, pp_schedule="zbv", stages_per_rank=2).stage_owners == [0, 1, 2, 2, 1, 0]
