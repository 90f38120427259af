"""Jobs on a host whose driver is a stand-in: what is decided and refused before a GPU is touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.gpu_node import MISMATCH, Nvidia, node
from tests.launching import RUNNER, ok, one_rank_each, own_lines, path_of, run, runner
from tests.results import refused

UUIDS = [f"GPU-00000000-stand-in-{number}" for number in range(2)]  # that no real GPU has


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a host with two GPUs, of which CUDA itself finds none."""
    host = node(tmp_path_factory.mktemp("host") / "gpus", nvidia=[Nvidia(uuid) for uuid in UUIDS])
    return {"PYTHONPATH": str(host.modules), "CUDA_VISIBLE_DEVICES": ",".join(UUIDS)}


def test_each_rank_gets_a_gpu_and_nccl(driver: dict[str, str]) -> None:
    found = json.loads(ok(runner(2, "explain", "--json", **driver)).stdout)
    assert [rank["device"] for rank in found["ranks"]] == ["cuda:0", "cuda:1"]
    assert found["backend"]["name"] == "nccl"


def test_a_gpu_that_torch_cannot_use_is_one_line(driver: dict[str, str], tmp_path: Path) -> None:
    done = runner(2, "workloads.linear", "--max-steps", "1", cwd=tmp_path, **driver)
    assert done.returncode == 2
    told = [line for line in own_lines(done) if "torch cannot use the GPU cuda:" in line]
    assert told[0].endswith("--device cpu does without")
    assert "Traceback" not in done.stderr


def test_the_doctor_says_why_a_gpu_cannot_be_used(driver: dict[str, str]) -> None:
    done = run(*RUNNER, "doctor", "--json", "--only", "GPUs", **driver)
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "GPUs"]
    assert (check["status"], check["detail"].partition(" (")[0]) == ("fail", "torch cannot use the GPU")


def test_a_rank_that_sees_none_is_refused_for_all(driver: dict[str, str]) -> None:
    explain = [*RUNNER, "explain"]
    done = run(*one_rank_each(explain, ["env", "CUDA_VISIBLE_DEVICES=", *explain]), **driver)
    refused(done, "(CUDA_VISIBLE_DEVICES=)", "--device cpu")


def test_allotted_gpus_that_none_sees_are_refused(tmp_path: Path) -> None:
    host = node(tmp_path / "host", nvml_error=MISMATCH)
    slurm = {"ROCR_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1"}
    alone = run(*RUNNER, "workloads.linear", PYTHONPATH=str(host.modules), **slurm)
    refused(alone, "(SLURM_JOB_GPUS=0,1)", "--device cpu")
    # What works alone may be started anywhere.
    ok(run(*RUNNER, "jobscript", "--scheduler", "slurm", path_of("says_its_rank"), **slurm))


def test_masks_alone_are_told_of_once_per_host() -> None:
    script = path_of("says_its_rank")
    done = ok(runner(2, script, HIP_VISIBLE_DEVICES="0,1"))
    (told,) = own_lines(done)
    assert told.startswith(f"runner: {os.uname().nodename}: HIP_VISIBLE_DEVICES=0,1 ")
    assert own_lines(ok(runner(2, "--device", "cpu", script, HIP_VISIBLE_DEVICES="0,1"))) == []
