"""Devices, cores and threads, from what the ranks of a host see."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import Policy, RefusedError, UsageError
from runner.hardware.core_map import cores_text
from runner.hardware.gpus import Gpus
from runner.hardware.placement import Placement, place_all
from runner.hardware.resources import Resources, resources
from runner.launch.detect import detect
from runner.launch.launchers import LAUNCHERS
from runner.options.command import parse
from runner.starting.launch import described
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


@pytest.mark.parametrize(
    ("seen_by_rank", "expected"),
    [
        (["abc", "abc", "abc"], [0, 1, 2]),  # all ranks see all
        (["a", "b"], [0, 0]),  # each its own
        (["ab", "ba", "bc"], [0, 0, 1]),
        (["ab", "a"], [1, 0]),  # the first leaves the second the only one that it sees
        (["ab", "ac", "a"], [1, 1, 0]),
    ],
)
def test_each_rank_gets_a_gpu(seen_by_rank: list[str], expected: list[int]) -> None:
    assert devices([seen([*gpus]) for gpus in seen_by_rank]) == [f"cuda:{index}" for index in expected]


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


@pytest.mark.parametrize(
    ("sharers", "told"),
    [
        ([seen(["a", "b"])] * 3, r"3 ranks on host node1 but 2 GPUs.*mpirun --map-by ppr:2:node.*--device cpu"),
        ([seen(["a"])] * 2, "2 ranks on host node1 but 1 GPU;"),
        (
            [seen(["a"]), seen(["a"]), seen(["b", "c"])],
            r"the 3 ranks on host node1 cannot have a GPU each: .*--gpu-bind=none",
        ),
        (
            [seen(["a", "b"]), seen(gpu_mask="CUDA_VISIBLE_DEVICES=", gpus_hidden=True)],
            r"local rank 1 on host node1 sees no GPU, and others there do \(CUDA_VISIBLE_DEVICES=\)",
        ),
        ([seen(["MIG-1"])] * 2, r"but 1 GPU: CUDA shows a process one MIG instance.*CUDA_VISIBLE_DEVICES=MIG-"),
        ([seen(["a"], gpu_problem="GPU 1 is lost")] * 2, r"2 ranks on host node1 but 1 GPU \(GPU 1 is lost\)"),
    ],
)
def test_ranks_that_cannot_have_a_gpu_each_are_refused(sharers: list[Resources], told: str) -> None:
    with pytest.raises(RefusedError, match=told):
        devices(sharers)


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
    """If one of them has more ranks than GPUs, a diagnosis uses CPUs everywhere."""
    hosts = [("node1", [0, 0]), ("node2", [1])]
    placed = place_all(OPENMPI, hosts, [seen(["a", "b"]), seen(["a"])], "auto", Policy.STRICT)
    assert [[p.torch_device for p in host] for host in placed] == [["cuda:0", "cuda:1"], ["cuda:0"]]
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


def test_a_kind_of_device_is_obeyed_or_refused() -> None:
    assert devices([seen(["a"])] * 2, "cpu") == ["cpu", "cpu"]
    assert devices([seen(["a", "b"], gpu_device="xpu")] * 2) == ["xpu:0", "xpu:1"]
    with pytest.raises(UsageError, match=r"\(there are GPUs of type xpu\)"):
        devices([seen(["a"], gpu_device="xpu")], "cuda")
    with pytest.raises(UsageError, match=r"^--device cuda: no GPU is visible on host node1; "):
        devices([seen()], "cuda")


@given(st.integers(1, 64), st.integers(1, 64))
def test_unbound_ranks_share_the_cores_without_oversubscribing(cores: int, ranks: int) -> None:
    placed = on_a_host(*([seen(host_cores=cores)] * ranks))
    assert all(p.threads == max(1, cores // ranks) for p in placed)


@pytest.mark.parametrize(
    ("sharers", "threads", "source"),
    [
        ([seen(cores=[0, 1]), seen(cores=[2, 3])], 2, "2 cores ÷ 1 rank on them"),
        ([seen(host_cores=64, quota=8.0)] * 4, 2, "a container's quota of 8 cores ÷ 4 ranks"),
        ([seen(user_threads=5)], 5, "OMP_NUM_THREADS"),
    ],
)
def test_threads_are_those_of_the_cores_of_a_rank(sharers: list[Resources], threads: int, source: str) -> None:
    assert {(p.threads, p.threads_source) for p in on_a_host(*sharers)} == {(threads, source)}


def test_one_core_binding_is_warned_of_with_the_flag() -> None:
    placed = on_a_host(seen(cores=[0]), seen(cores=[1]))
    assert "bound each rank to 1 of 8 cores" in placed[0].warning
    assert placed[0].warning.endswith("mpirun --bind-to none")
    assert not on_a_host(seen(cores=[0], host_cores=2), seen(cores=[1], host_cores=2))[0].warning
    assert not on_a_host(*([seen()] * 2))[0].warning


def test_a_job_in_slurm_is_measured_by_its_share_of_the_host() -> None:
    """Two ranks of four cores each on a large host that others use as well have all that they can get."""
    cores = os.cpu_count() or 1
    assert resources({"SLURM_CPUS_ON_NODE": "1"}).host_cores == 1
    assert resources({"SLURM_CPUS_ON_NODE": str(cores + 8)}).host_cores == cores
    assert resources({"SLURM_CPUS_ON_NODE": "many"}).host_cores == resources({}).host_cores == cores


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        ("--device cpu train.py", False),
        ("train.py", True),
        ("--device cpu doctor", True),
        ("--device cpu explain", False),
    ],
)
def test_no_driver_is_asked_for_gpus_that_are_not_to_be_used(
    words: str, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hang. The doctor asks it in any case."""
    asked: list[bool] = []
    monkeypatch.setattr("runner.hardware.resources.visible_gpus", lambda *words: asked.append(True) or Gpus(names=[]))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    request = parse(words.split(), summaries())
    _, record = described(request, found_target(request), detect({}, None), 0)
    assert record.resources["gpus"] == []
    assert bool(asked) == asks
