"""What an older torch is not asked to do, where a model, a layout or a plan would ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from runner.base.errors import UsageError
from runner.parallel.mesh import Degrees, Layout, device_mesh
from runner.parallel.settings import ParallelSettings
from runner.versions.torch_build import TorchBuild

ASCENDING = Layout(Degrees(shard=2, tensor=2), (0, 1, 2, 3))
CROSSED = Layout(Degrees(shard=2, tensor=2), (0, 3, 2, 1))


@pytest.fixture
def torch_is(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release that is taken for the installed one."""
    monkeypatch.setattr("runner.versions.features.torch_build", lambda: TorchBuild(request.param))


def of_release(version: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("torch_is", [version], indirect=True)


@pytest.mark.parametrize(
    ("options", "layout", "features"),
    [
        (ParallelSettings(tp=2), Layout(Degrees(tensor=2), (0, 1)), []),
        (ParallelSettings(tp=2, precision="bf16"), Layout(Degrees(tensor=2), (0, 1)), ["replicas"]),
        (ParallelSettings(tp=2), Layout(Degrees(replicate=2, tensor=2), (0, 1, 2, 3)), ["replicas"]),
        (ParallelSettings(tp=2, strategy="fsdp"), ASCENDING, []),
        (ParallelSettings(tp=2, strategy="fsdp"), CROSSED, ["order"]),
        (ParallelSettings(precision="bf16"), Layout(Degrees(replicate=2), (0, 1)), []),
    ],
)
def test_what_a_layout_adds_to_what_its_options_need(
    options: ParallelSettings, layout: Layout, features: list[str]
) -> None:
    assert options.features_in(layout) == features


@of_release("2.8.0")
@pytest.mark.usefixtures("torch_is")
def test_ranks_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(UsageError, match="a layout whose ranks do not ascend needs torch 2"):
        device_mesh(CROSSED, "cpu")


@pytest.fixture
def two_parts() -> Iterator[nn.Module]:
    """Layers of two sizes, sharded in two by their outputs; the first and a norm are frozen."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel

    from runner.parallel.sharded import shard_layers
    from runner.tools.plan.planner import fake_process_group

    with fake_process_group(4):
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 6))
        model[:2].requires_grad_(requires_grad=False)
        styles = {"0": ColwiseParallel(), "1": SequenceParallel(), "2": ColwiseParallel()}
        shard_layers(model, styles, DeviceMesh("cpu", [0, 1]))
        yield model


@pytest.mark.needs("tp", "frozen")
@of_release("2.9.1")
@pytest.mark.usefixtures("torch_is")
def test_parts_of_which_shards_would_be_uneven_are_refused(two_parts: nn.Module) -> None:
    from runner.parallel.support import check_even

    check_even(two_parts, 1)  # replicas
    check_even(two_parts[0], 2)  # type: ignore[index]  # it is a sequence
    with pytest.raises(UsageError, match="--tp in shards of uneven size needs torch 2"):
        check_even(two_parts, 2)


@pytest.mark.needs("tp", "frozen")
def test_what_is_frozen_stays_so_where_layers_are_divided(two_parts: nn.Module) -> None:
    assert [one.requires_grad for one in two_parts.parameters()] == [False] * 4 + [True] * 2


@pytest.mark.needs("plan")
@of_release("2.9.1")
@pytest.mark.usefixtures("torch_is")
def test_a_plan_leaves_out_what_this_torch_cannot_do_and_says_why() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel

    from runner.parallel.task import Plan
    from runner.tools.plan.layouts import Cluster, candidates

    plan = Plan(shard=("*",), tensor={"0": ColwiseParallel()})
    found, left_out = candidates(Cluster(gpus=2, hosts=1), plan, ParallelSettings(), {}, batch=8)
    assert {one.name for one in found} == {"ddp 2", "zero1 2", "fsdp 2"}
    assert sum(number for reason, number in left_out.items() if reason.startswith("plan of --tp needs")) > 0


def test_gradients_are_scaled_by_hand_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.versions import torch_api

    def clipped() -> tuple[torch.Tensor, torch.Tensor]:
        one = nn.Parameter(torch.zeros(3))
        one.grad = torch.tensor([3.0, 0.0, 4.0])
        norm = torch_api.total_norm([one.grad, torch.tensor([12.0])])
        torch_api.clip([one], 1.0, norm)
        return norm, one.grad

    own = clipped()
    monkeypatch.setattr(torch_api, "_RELEASE", (2, 5, True))
    by_hand = clipped()
    assert by_hand[0].item() == pytest.approx(13.0)
    assert all(torch.allclose(one, other) for one, other in zip(own, by_hand, strict=True))
