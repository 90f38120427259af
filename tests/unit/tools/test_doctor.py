"""Verdicts that need hardware which the tests do not have, or more ranks: judged on data."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.hardware.resources import Resources, of_record
from runner.launch.launchers import LAUNCHERS
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records
from runner.rendezvous.records.topology import Host, Topology
from runner.tools.doctor.gpu_checks import judge_gpus
from runner.tools.doctor.speed_checks import judge_links, rounds_of_pairs
from tests.launching import ROOT, RUNNER, ok, run

FINE = {"driver": "580.1", "mig": False, "order": "", "torch": "", "nccl": "2.28.9"}


def job(*ranks_per_host: int) -> Any:
    """A job of so many ranks on host0, host1, …"""
    hosts, first = [], 0
    for index, count in enumerate(ranks_per_host):
        hosts.append(Host(f"host{index}", tuple(range(first, first + count))))
        first += count
    openmpi = next(row for row in LAUNCHERS if row.name == "openmpi")
    topology = Topology(tuple(hosts), Records.of([RankRecord()] * first))
    return SimpleNamespace(
        rank=0, size=first, device="auto", topology=topology, context=SimpleNamespace(launcher=openmpi)
    )


@pytest.mark.parametrize(
    ("seen", "changes", "status", "text"),
    [
        ([["GPU-a", "GPU-b"]] * 2 + [["GPU-c"], ["GPU-d"]], {}, "ok", "4 GPUs, driver 580.1, NCCL 2.28.9"),
        ([[], [], [], []], {}, "ok", "none"),
        ([["GPU-a"], ["GPU-a"], ["GPU-c"], ["GPU-d"]], {}, "fail", "2 ranks on host0 share 1 GPU, GPU-a; NCCL refuses"),
        ([["GPU-a", "GPU-b"]] * 2 + [[], []], {}, "fail", "no GPU on ranks 2-3 (host1), while others see some"),
        ([["GPU-a"], ["GPU-b"], ["GPU-c"], ["GPU-d"]], {"driver": "550.2"}, "warn", "580.1 on ranks 0-2 (host0, host1); 550.2 on rank 3"),
        ([["GPU-a"], ["GPU-b"], ["GPU-c"], ["GPU-d"]], {"nccl": "2.20.5"}, "warn", "NCCL differs"),
        ([["GPU-a"], ["GPU-b"], ["GPU-c"], ["GPU-d"]], {"torch": "torch was built without CUDA"}, "fail", "without CUDA on rank 3 (host1)"),
        ([["GPU-a"], ["GPU-b"], ["GPU-c"], ["MIG-d"]], {"mig": True}, "warn", "MIG is on for rank 3 (host1)"),
        ([["GPU-a"], ["GPU-b"], ["GPU-c"], ["GPU-d"]], {"order": "GPUs of different models (A, B)"}, "warn", "models (A, B) on rank 3 (host1): CUDA"),
    ],
)  # fmt: skip
def test_gpus(seen: list[list[str]], changes: dict[str, Any], status: str, text: str) -> None:
    verdict = judge_gpus(job(2, 2), [resources(gpus) for gpus in seen], [FINE, FINE, FINE, FINE | changes])
    assert verdict.status == status
    assert text in verdict.detail
    assert bool(verdict.fix) == (status != "ok")


def resources(gpus: Sequence[str] = (), **more: Any) -> Resources:
    return Resources(gpus=list(gpus), **more)


@pytest.mark.parametrize(
    ("last", "status", "text"),
    [
        ({"gpus_allotted": "SLURM_JOB_GPUS=0"}, "fail", "SLURM_JOB_GPUS=0 on rank 3 (host1), but no GPU is to be seen"),
        ({"gpu_mask": "HIP_VISIBLE_DEVICES=0"}, "warn", "HIP_VISIBLE_DEVICES=0 on rank 3 (host1), but no GPU is to be seen"),
        ({"gpu_problem": "GPU 0 is lost"}, "warn", "GPU 0 is lost on rank 3 (host1)"),
        ({"gpus_allotted": "SLURM_JOB_GPUS=0", "gpu_problem": "torch is for CPUs"}, "fail", "seen there (torch is for CPUs)"),
        ({"gpu_mask": "CUDA_VISIBLE_DEVICES=", "gpus_hidden": True}, "ok", "CUDA_VISIBLE_DEVICES= hides them on rank 3"),
    ],
)  # fmt: skip
def test_why_there_are_no_gpus(last: dict[str, Any], status: str, text: str) -> None:
    verdict = judge_gpus(job(2, 2), [resources()] * 3 + [resources(**last)], [FINE] * 4)
    assert (verdict.status, text in verdict.detail) == (status, True)


def test_a_broken_gpu_among_others_is_told_of() -> None:
    problem = {"gpu_problem": "GPU 1 is lost"}
    alone = judge_gpus(job(1, 1), [resources(["a"]), resources(["b"], **problem)], [FINE] * 2)
    assert (alone.status, alone.detail) == ("warn", "GPU 1 is lost on rank 1 (host1)")
    needed = judge_gpus(job(2), [resources(["a"], **problem)] * 2, [FINE] * 2)
    assert (needed.status, needed.detail.endswith("(GPU 1 is lost)")) == ("fail", True)


def test_gpus_that_are_not_to_be_used_are_not_judged() -> None:
    on_cores = job(2)
    on_cores.device = "cpu"
    assert judge_gpus(on_cores, [resources(["GPU-a"])] * 2, [FINE] * 2).status == "ok"


def test_a_record_of_another_version_is_judged_by_what_is_known_of_it() -> None:
    """An older one lacks fields, and a newer one has more."""
    older, newer = of_record({"cores": "0-3", "gpus": []}), of_record({"gpu_mask": "A=1", "gpu_memory": 80})
    assert (older.cores, older.quota, of_record({}).mask, newer.gpu_mask) == ("0-3", None, 1, "A=1")
    assert judge_gpus(job(2), [older, newer], [FINE] * 2).detail.startswith("A=1 on rank 1 (host0)")


def ring(size: int, slow: set[tuple[int, int]]) -> dict[tuple[int, int], float]:
    return {pair: 0.01 if pair in slow else 2.0 for pairs in rounds_of_pairs(size) for pair in pairs}


def test_a_slow_link_and_a_slow_rank_are_told_apart() -> None:
    assert judge_links(job(2, 2), ring(4, set())).status == "ok"
    link = judge_links(job(2, 2), ring(4, {(1, 2)}))
    assert link.detail.startswith("rank 1 (host0) – rank 2 (host1): 0.01 GB/s")
    rank = judge_links(job(2, 2), ring(4, {(1, 2), (2, 3)}))
    assert rank.detail.startswith("rank 2 (host1): slow with every neighbour")
    all_of_them = judge_links(job(1, 1, 1), ring(3, {(0, 1), (1, 2), (0, 2)}))
    assert all_of_them.detail.startswith("rank 0 (host0) – rank 1 (host1), rank 0 (host0) – rank 2 (host2)")


@given(st.integers(2, 40))
def test_every_neighbour_pair_is_in_one_round_and_no_rank_twice_in_one(size: int) -> None:
    rounds = rounds_of_pairs(size)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert len(rounds) <= 3
    assert sorted(pairs) == sorted({(min(r, (r + 1) % size), max(r, (r + 1) % size)) for r in range(size)})
    for one in rounds:
        ranks = [rank for pair in one for rank in pair]
        assert len(ranks) == len(set(ranks))


def test_what_libraries_print_does_not_stand_beside_the_json() -> None:
    """As gloo of torch 2.9 does, from C++."""
    code = (
        "import os; from runner.tools.tables.output import libraries_print_on_stderr as apart; print('before')\n"
        "with apart(): os.write(1, b'[Gloo] Rank 0 is connected\\n'); print('during')\n"
        "print('{}')"
    )
    done = ok(run(RUNNER[0], "-c", code, PYTHONPATH=str(ROOT)))
    assert done.stdout == "before\n{}\n"
    assert done.stderr == "[Gloo] Rank 0 is connected\nduring\n"
