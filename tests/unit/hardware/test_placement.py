"""Devices, cores and threads, from what the ranks of a host see."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import Policy, RefusedError, UsageError
from runner.hardware.gpus import Gpus
from runner.hardware.placement import Placement, place_all
from runner.hardware.resources import Resources, cores_text, resources
from runner.launch.detect import detect
from runner.launch.launchers import LAUNCHERS
from runner.options.command import parse
from runner.starting.launch import _described
from runner.starting.sharing import found_target
from runner.tools.registry import summaries

OPENMPI = next(row for row in LAUNCHERS if row.name == "openmpi")


def seen(
    gpus: list[str] | None = None,
    cores: list[int] | None = None,
    host_cores: int = 8,
    quota: float | None = None,
    **more: Any,
) -> Resources:
    return Resources(
        cores=cores_text(range(host_cores) if cores is None else cores),
        host_cores=host_cores,
        quota=quota,
        gpus=gpus or [],
        **more,
    )


def on_a_host(*sharers: Resources, device: str = "auto") -> list[Placement]:
    """The placements of the ranks of a host that see these resources."""
    (placed,) = place_all(OPENMPI, [("node1", range(len(sharers)))], sharers, device, Policy.STRICT)
    return placed


def devices(sharers: list[Resources], device: str = "auto") -> list[str]:
    return [placement.torch_device for placement in on_a_host(*sharers, device=device)]


def test_all_ranks_see_all_gpus() -> None:
    assert devices([seen(["a", "b", "c"])] * 3) == ["cuda:0", "cuda:1", "cuda:2"]


def test_each_rank_sees_its_own_gpu() -> None:
    assert devices([seen(["a"]), seen(["b"])]) == ["cuda:0", "cuda:0"]


def test_some_gpus_overlap() -> None:
    assert devices([seen(["a", "b"]), seen(["b", "a"]), seen(["b", "c"])]) == ["cuda:0", "cuda:0", "cuda:1"]


def test_a_rank_leaves_the_only_gpu_that_another_sees_to_it() -> None:
    assert devices([seen(["a", "b"]), seen(["a"])]) == ["cuda:1", "cuda:0"]
    assert devices([seen(["a", "b"]), seen(["a", "c"]), seen(["a"])]) == ["cuda:1", "cuda:1", "cuda:0"]


@given(st.lists(st.lists(st.sampled_from("abcde"), min_size=1, unique=True), min_size=1, max_size=4))
def test_ranks_get_a_gpu_each_wherever_that_is_possible(sets: list[list[str]]) -> None:
    possible = any(len(set(choice)) == len(sets) for choice in itertools.product(*sets))
    try:
        indices = [int(device.removeprefix("cuda:")) for device in devices([seen(gpus) for gpus in sets])]
    except RefusedError:
        assert not possible
    else:
        assert len({gpus[index] for gpus, index in zip(sets, indices, strict=True)}) == len(sets)


@pytest.mark.parametrize(
    ("sharers", "crowded"),
    [
        ([seen(host_cores=4)] * 4, False),
        ([seen(host_cores=4)] * 5, True),
        ([seen(host_cores=8, quota=2.0)] * 2, False),
        ([seen(host_cores=8, quota=2.0)] * 3, True),
        ([seen(cores=[0]), seen(cores=[0])], True),
        ([seen(cores=[0]), seen(cores=[1])], False),
    ],
)
def test_more_ranks_than_cores_are_a_crowd(sharers: list[Resources], crowded: bool) -> None:
    assert {placement.is_crowded for placement in on_a_host(*sharers)} == {crowded}


def test_more_ranks_than_gpus_is_refused_with_the_flag() -> None:
    with pytest.raises(
        RefusedError, match=r"3 ranks on host node1 but 2 GPUs.*mpirun --map-by ppr:2:node.*--device cpu"
    ):
        devices([seen(["a", "b"])] * 3)


def test_two_ranks_shown_the_same_one_gpu_are_refused() -> None:
    with pytest.raises(RefusedError, match="2 ranks on host node1 but 1 GPU;"):
        devices([seen(["a"])] * 2)


def test_ranks_that_share_gpus_while_others_are_free_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"the 3 ranks on host node1 cannot have a GPU each: .*--gpu-bind=none"):
        devices([seen(["a"]), seen(["a"]), seen(["b", "c"])])


def test_a_rank_without_a_gpu_beside_ranks_with_one_is_refused() -> None:
    hidden = seen(gpu_mask="CUDA_VISIBLE_DEVICES=", gpus_hidden=True)
    with pytest.raises(
        RefusedError, match=r"local rank 1 on host node1 sees no GPU, and others there do \(CUDA_VISIBLE_DEVICES=\)"
    ):
        devices([seen(["a", "b"]), hidden])


def test_ranks_with_the_same_mig_instances_are_told_to_have_one_each() -> None:
    with pytest.raises(
        RefusedError, match=r"but 1 GPU: CUDA shows a process one MIG instance.*CUDA_VISIBLE_DEVICES=MIG-"
    ):
        devices([seen(["MIG-1"])] * 2)
    assert devices([seen(["MIG-1"]), seen(["MIG-2"])]) == ["cuda:0", "cuda:0"]


def test_intels_gpus_have_their_own_device_type() -> None:
    assert devices([seen(["a", "b"], gpu_device="xpu")] * 2) == ["xpu:0", "xpu:1"]
    with pytest.raises(UsageError, match=r"\(there are GPUs of type xpu\)"):
        devices([seen(["a"], gpu_device="xpu")], "cuda")


def on_hosts(*kinds: Resources, device: str = "auto", policy: Policy = Policy.STRICT) -> list[list[Placement]]:
    """The placements of a rank for each of these resources, on hosts node1, node2, …"""
    return place_all(OPENMPI, [(f"node{i + 1}", [i]) for i in range(len(kinds))], kinds, device, policy)


def test_hosts_with_and_without_gpus_do_not_train_together() -> None:
    """Each rank would choose another backend by its own device, and they would never connect."""
    broken = seen(gpu_problem="version mismatch")
    told = r"would compute on cuda on node1, node3, but cpu on node2, where no GPU is visible \(version mismatch\); .*--device cpu$"
    with pytest.raises(RefusedError, match=told):
        on_hosts(seen(["a"]), broken, seen(["c"]))
    for options in ({"device": "cpu"}, {"policy": Policy.DIAGNOSTIC}):
        assert {host[0].device for host in on_hosts(seen(["a"]), broken, **options)} == {"cpu"}
    many = [seen(["a"]), *[broken] * 9]
    with pytest.raises(RefusedError, match=r"cpu on node2, node3, node4, node5 and 5 more"):
        on_hosts(*many)
    with pytest.raises(UsageError, match=r"node2 \(version mismatch\)"):
        on_hosts(seen(["a"]), broken, device="cuda")


def test_hosts_may_have_different_numbers_of_gpus() -> None:
    hosts = [("node1", [0, 0]), ("node2", [1])]
    placed = place_all(OPENMPI, hosts, [seen(["a", "b"]), seen(["a"])], "auto", Policy.STRICT)
    assert [[p.torch_device for p in host] for host in placed] == [["cuda:0", "cuda:1"], ["cuda:0"]]


def test_one_host_with_too_many_ranks_puts_all_of_a_diagnosis_on_cpus() -> None:
    hosts = [("node1", [0, 0]), ("node2", [1])]
    placed = place_all(OPENMPI, hosts, [seen(["a"]), seen(["b"])], "auto", Policy.DIAGNOSTIC)
    assert {p.device for host in placed for p in host} == {"cpu"}


def test_gpus_that_the_scheduler_has_allotted_are_not_done_without() -> None:
    lost = seen(gpus_allotted="SLURM_JOB_GPUS=0,1", gpu_mask="ROCR_VISIBLE_DEVICES=0,1")
    with pytest.raises(
        RefusedError,
        match=r"the scheduler has allotted GPUs to host node1 \(SLURM_JOB_GPUS=0,1\), and none can be used: no driver .*--device cpu",
    ):
        on_hosts(lost, lost)
    assert on_hosts(lost, device="cpu")[0][0].gpu_warning == ""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        (
            {"gpu_mask": "HIP_VISIBLE_DEVICES=0,1"},
            "HIP_VISIBLE_DEVICES=0,1 chooses GPUs, and none can be used: no driver shows one; the ranks compute on CPUs (say --device cpu if that is meant)",
        ),
        ({"gpu_mask": "CUDA_VISIBLE_DEVICES=", "gpus_hidden": True}, ""),
        (
            {"gpus_allotted": "SLURM_JOB_GPUS=0", "gpu_mask": "CUDA_VISIBLE_DEVICES=NoDevFiles", "gpus_hidden": True},
            "SLURM_JOB_GPUS=0 allots GPUs, and CUDA_VISIBLE_DEVICES=NoDevFiles hides them; ",
        ),
        ({"gpu_problem": "GPU 0 is lost"}, "GPU 0 is lost; "),
    ],
)
def test_what_is_said_where_ranks_compute_on_cpus(more: dict[str, Any], said: str) -> None:
    ((placement,),) = on_hosts(seen(**more))
    assert (placement.device, placement.gpu_warning.startswith(said)) == ("cpu", True)
    assert bool(placement.gpu_warning) == bool(said)


def test_a_broken_gpu_is_left_out_and_told_of() -> None:
    broken = seen(["a"], gpu_problem="GPU 1 is lost")
    ((placement,),) = on_hosts(broken)
    assert (placement.torch_device, placement.gpu_warning) == ("cuda:0", "GPU 1 is lost; it is left out")
    with pytest.raises(RefusedError, match=r"2 ranks on host node1 but 1 GPU \(GPU 1 is lost\)"):
        devices([broken] * 2)


def test_cpu_can_be_chosen_beside_gpus() -> None:
    assert devices([seen(["a"])] * 2, "cpu") == ["cpu", "cpu"]


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--device cuda: no GPU is visible on host node1; "):
        devices([seen()], "cuda")


@given(st.integers(1, 8), st.integers(1, 8))
def test_no_two_ranks_share_a_gpu(ranks: int, gpus: int) -> None:
    names = [f"gpu{i}" for i in range(gpus)]
    if ranks > gpus:
        with pytest.raises(RefusedError):
            devices([seen(names)] * ranks)
    else:
        assert len(set(devices([seen(names)] * ranks))) == ranks


@given(st.integers(1, 64), st.integers(1, 64))
def test_unbound_ranks_share_the_cores_without_oversubscribing(cores: int, ranks: int) -> None:
    placed = on_a_host(*([seen(host_cores=cores)] * ranks))
    assert all(p.threads == max(1, cores // ranks) for p in placed)


def test_bound_ranks_use_the_cores_they_are_bound_to() -> None:
    placed = on_a_host(seen(cores=[0, 1]), seen(cores=[2, 3]))
    assert [p.threads for p in placed] == [2, 2]


def test_a_containers_quota_counts() -> None:
    placed = on_a_host(*([seen(host_cores=64, quota=8.0)] * 4))
    assert [p.threads for p in placed] == [2] * 4
    assert "quota" in placed[0].threads_source


def test_the_users_threads_are_kept() -> None:
    placed = on_a_host(seen(user_threads=5))
    assert (placed[0].threads, placed[0].threads_source) == (5, "OMP_NUM_THREADS")


def test_one_core_binding_is_warned_of_with_the_flag() -> None:
    placed = on_a_host(seen(cores=[0]), seen(cores=[1]))
    assert "bound each rank to 1 of 8 cores" in placed[0].warning
    assert placed[0].warning.endswith("mpirun --bind-to none")


def test_a_job_in_slurm_is_measured_by_its_share_of_the_host() -> None:
    """Two ranks of four cores each on a large host that others use as well have all that they can get."""
    cores = os.cpu_count() or 1
    assert resources({"SLURM_CPUS_ON_NODE": "1"}).host_cores == 1
    assert resources({"SLURM_CPUS_ON_NODE": str(cores + 8)}).host_cores == cores
    assert resources({"SLURM_CPUS_ON_NODE": "many"}).host_cores == resources({}).host_cores == cores


def test_no_warning_where_there_is_nothing_to_gain() -> None:
    assert not on_a_host(seen(cores=[0], host_cores=2), seen(cores=[1], host_cores=2))[0].warning
    assert not on_a_host(*([seen()] * 2))[0].warning


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        (["--device", "cpu"], False),
        ([], True),
        (["--device", "cpu", "doctor"], True),
        (["--device", "cpu", "explain"], False),
    ],
)
def test_no_driver_is_asked_for_gpus_that_are_not_to_be_used(
    options: list[str], asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hang. The doctor asks it in any case."""
    asked: list[bool] = []
    monkeypatch.setattr("runner.hardware.resources.visible_gpus", lambda *words: asked.append(True) or Gpus(names=[]))
    (tmp_path / "train.py").touch()
    request = parse(
        [*options, *([] if {"doctor", "explain"} & {*options} else [str(tmp_path / "train.py")])], summaries()
    )
    lifeline: Any = SimpleNamespace(port=0)
    target, record = _described(request, found_target(request), detect({}, None), lifeline)
    assert target is not None
    assert record.resources["gpus"] == []
    assert bool(asked) == asks
