"""Devices, cores and threads, from what the ranks of a host see."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import RefusedError, UsageError
from runner.launch.table import LAUNCHERS
from runner.placement import Resources, cores_text, place_host, resources

OPENMPI = next(row for row in LAUNCHERS if row.name == "openmpi")


def seen(
    gpus: list[str] | None = None,
    cores: list[int] | None = None,
    host_cores: int = 8,
    quota: float | None = None,
    user_threads: int | None = None,
) -> Resources:
    return Resources(
        cores=cores_text(range(host_cores) if cores is None else cores),
        host_cores=host_cores,
        quota=quota,
        gpus=gpus or [],
        user_threads=user_threads,
    )


def devices(sharers: list[Resources], device: str = "auto") -> list[str]:
    return [placement.torch_device for placement in place_host(OPENMPI, "node1", sharers, device)]


def test_all_ranks_see_all_gpus() -> None:
    assert devices([seen(["a", "b", "c"])] * 3) == ["cuda:0", "cuda:1", "cuda:2"]


def test_each_rank_sees_its_own_gpu() -> None:
    assert devices([seen(["a"]), seen(["b"])]) == ["cuda:0", "cuda:0"]


def test_some_gpus_overlap() -> None:
    assert devices([seen(["a", "b"]), seen(["b", "a"]), seen(["b", "c"])]) == ["cuda:0", "cuda:0", "cuda:1"]


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
    assert {placement.is_crowded for placement in place_host(OPENMPI, "node1", sharers)} == {crowded}


def test_more_ranks_than_gpus_is_refused_with_the_flag() -> None:
    with pytest.raises(
        RefusedError, match=r"3 ranks on host node1 but 2 GPUs.*mpirun --map-by ppr:2:node.*--device cpu"
    ):
        devices([seen(["a", "b"])] * 3)


def test_two_ranks_shown_the_same_one_gpu_are_refused() -> None:
    with pytest.raises(RefusedError, match="2 ranks on host node1 but 1 GPU;"):
        devices([seen(["a"])] * 2)


def test_cpu_can_be_chosen_beside_gpus() -> None:
    assert devices([seen(["a"])] * 2, "cpu") == ["cpu", "cpu"]


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no GPU is visible on host node1"):
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
    placed = place_host(OPENMPI, "node1", [seen(host_cores=cores)] * ranks)
    assert all(p.threads == max(1, cores // ranks) for p in placed)


def test_bound_ranks_use_the_cores_they_are_bound_to() -> None:
    placed = place_host(OPENMPI, "node1", [seen(cores=[0, 1]), seen(cores=[2, 3])])
    assert [p.threads for p in placed] == [2, 2]


def test_a_containers_quota_counts() -> None:
    placed = place_host(OPENMPI, "node1", [seen(host_cores=64, quota=8.0)] * 4)
    assert [p.threads for p in placed] == [2] * 4
    assert "quota" in placed[0].threads_source


def test_the_users_threads_are_kept() -> None:
    placed = place_host(OPENMPI, "node1", [seen(user_threads=5)])
    assert (placed[0].threads, placed[0].threads_source) == (5, "OMP_NUM_THREADS")


def test_one_core_binding_is_warned_of_with_the_flag() -> None:
    placed = place_host(OPENMPI, "node1", [seen(cores=[0]), seen(cores=[1])])
    assert "bound each rank to 1 of 8 cores" in placed[0].warning
    assert placed[0].warning.endswith("mpirun --bind-to none")


def test_a_job_in_slurm_is_measured_by_its_share_of_the_host() -> None:
    """Two ranks of four cores each on a large host that others use as well have all that they can get."""
    cores = os.cpu_count() or 1
    assert resources({"SLURM_CPUS_ON_NODE": "1"}).host_cores == 1
    assert resources({"SLURM_CPUS_ON_NODE": str(cores + 8)}).host_cores == cores
    assert resources({"SLURM_CPUS_ON_NODE": "many"}).host_cores == resources({}).host_cores == cores


def test_no_warning_where_there_is_nothing_to_gain() -> None:
    assert not place_host(OPENMPI, "node1", [seen(cores=[0], host_cores=2), seen(cores=[1], host_cores=2)])[0].warning
    assert not place_host(OPENMPI, "node1", [seen()] * 2)[0].warning
