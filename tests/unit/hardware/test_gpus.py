"""Which GPUs a process may use, on stand-ins of hosts that are not at hand."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from runner.hardware.gpus import chosen
from runner.versions.torch_build import TorchBuild, torch_build
from tests.gpu_node import (
    CUDA,
    FOR_CPUS,
    LOST,
    MISMATCH,
    NO_DRIVER,
    NO_LIBRARY,
    NO_PERMISSION,
    NOT_SUPPORTED,
    ROCM,
    XPU,
    Node,
    Nvidia,
    node,
)
from tests.launching import ROOT

Host = Callable[..., Node]
DATA = ROOT / "tests" / "data" / "gpus"
FOUR = ["GPU-a0", "GPU-a1", "GPU-b2", "GPU-c3"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A function that makes a host, and has this process ask its driver."""
    number = itertools.count()
    return lambda **shown: node(tmp_path / str(next(number)), **shown).use(monkeypatch)


@pytest.mark.parametrize(
    ("mask", "shown"), [("2,0", [2, 0]), ("0,2,-1,1", [0, 2]), ("GPU-b,GPU-a1", [2, 1]), ("GPU-a", []), ("", [])]
)
def test_a_mask_is_taken_at_its_word(mask: str, shown: list[int], host: Host) -> None:
    here = host(nvidia=[Nvidia(uuid) for uuid in FOUR])
    assert here.visible(CUDA_VISIBLE_DEVICES=mask).names == [FOUR[i] for i in shown]


_ENTRIES = st.one_of(
    st.integers(-1, 5).map(str),
    st.sampled_from(["", " 1", "+2", "2x", "x", "NoDevFiles", "GPU-", *FOUR, *(name[:5] for name in FOUR)]),
)


@given(st.lists(_ENTRIES, max_size=5).map(",".join))
@example("0,9,0")
@example("GPU-c,GPU-c3")
@example("GPU-c3,0")
def test_a_mask_is_read_as_torch_reads_it(mask: str) -> None:
    with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=mask):
        parsed = torch.cuda._parse_visible_devices()
    if any(isinstance(entry, str) for entry in parsed):
        parsed = torch.cuda._transform_uuid_to_ordinals(parsed, FOUR)
    by_torch = [FOUR[i] for i in itertools.takewhile(lambda i: i < len(FOUR), parsed)]
    assert chosen(mask, FOUR) == by_torch


HALVES = ["MIG-a", "MIG-b"]
DIVIDED, WHOLE, UNDIVIDED = Nvidia("GPU-d", HALVES), Nvidia("GPU-w"), Nvidia("GPU-e", [])


@pytest.mark.parametrize(
    ("gpus", "mask", "shown"),
    [
        ([WHOLE], "MIG-1111,MIG-2222", ["MIG-1111"]),
        ([DIVIDED], "MIG-b,MIG-a", ["MIG-b"]),
        ([DIVIDED], "MIG-GPU-d/1/0", ["MIG-GPU-d/1/0"]),  # as drivers before 470 name them
        ([DIVIDED], None, ["MIG-a"]),
        ([DIVIDED], "0", ["MIG-a"]),
        ([DIVIDED], "GPU-d", ["MIG-a"]),
        ([WHOLE, DIVIDED], None, ["MIG-a"]),  # then CUDA leaves out the others
        ([WHOLE, DIVIDED], "0", ["GPU-w"]),
        ([UNDIVIDED], None, []),  # in MIG mode without an instance
        ([WHOLE, UNDIVIDED], None, ["GPU-w"]),
    ],
)
def test_a_process_has_one_mig_instance(gpus: list[Nvidia], mask: str | None, shown: list[str], host: Host) -> None:
    here = host(nvidia=gpus)
    assert here.visible(CUDA, {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}).names == shown


def test_jetsons_driver_may_know_no_uuids(host: Host) -> None:
    found = host(nvidia=[Nvidia("", uuid_error=NOT_SUPPORTED)]).visible()
    assert (found.names, found.problem) == (["nvidia0"], "")


@pytest.mark.parametrize(
    ("error", "files", "problem"),
    [
        (MISMATCH, ["nvidia0"], "the NVIDIA driver does not answer: Driver/library version mismatch"),
        (NO_DRIVER, ["nvidia0"], "the NVIDIA driver does not answer: Driver Not Loaded"),
        (NO_DRIVER, [], ""),  # a container's image that has the library, on a host without GPUs
        (NO_LIBRARY, [], ""),
    ],
)
def test_a_driver_that_does_not_answer(error: int, files: list[str], problem: str, host: Host) -> None:
    found = host(nvml_error=error, files=files).visible()
    assert (found.names, found.problem) == ([], problem)


def test_a_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setattr("runner.hardware.gpus._PATIENCE", 0.1)
    found = host(nvidia=[Nvidia("GPU-1")], nvml_seconds=2).visible()
    assert (found.names, found.problem) == ([], "the NVIDIA driver has not answered within 0.1 s")


def test_a_broken_gpu_is_named_and_that_of_another_job_is_not(host: Host) -> None:
    gpus = [Nvidia("GPU-0", error=NO_PERMISSION), Nvidia("GPU-1"), Nvidia("GPU-2", error=LOST), Nvidia("GPU-3")]
    lost = "GPU 2 does not answer: GPU is lost"
    here = host(nvidia=gpus)
    assert (here.visible().names, here.visible().problem) == (["GPU-1", "GPU-3"], lost)
    # CUDA numbers those that this process may open, and the broken one keeps its number.
    assert here.visible(CUDA_VISIBLE_DEVICES="0,2").names == ["GPU-1", "GPU-3"]
    assert here.visible(CUDA_VISIBLE_DEVICES="0,1,2").names == ["GPU-1", "GPU-3"]
    none = here.visible(CUDA_VISIBLE_DEVICES="1")
    assert (none.names, none.problem) == ([], f"CUDA_VISIBLE_DEVICES=1 chooses none of the GPUs here (2); {lost}")
    first = host(nvidia=[Nvidia("GPU-0", error=LOST), Nvidia("GPU-1")])
    assert first.visible(CUDA_VISIBLE_DEVICES="GPU-0,GPU-1").names == []


def devices(*properties: Any) -> Any:
    """torch's module for a type of device, with devices that have these properties."""
    return SimpleNamespace(device_count=lambda: len(properties), get_device_properties=properties.__getitem__)


@pytest.mark.parametrize(
    ("build", "mask", "files"),
    [
        (ROCM, "ROCR_VISIBLE_DEVICES", []),
        (XPU, "ZE_AFFINITY_MASK", []),
        (CUDA, "CUDA_VISIBLE_DEVICES", ["nvidia0"]),
        (CUDA, "CUDA_VISIBLE_DEVICES", ["nvhost-gpu"]),
    ],
)
def test_torch_counts_gpus_in_a_child_where_nvml_does_not(
    build: TorchBuild, mask: str, files: list[str], monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    asked = []
    here = host(nvml_error=NO_LIBRARY, files=files)
    newer = devices(SimpleNamespace(uuid="12-34"), SimpleNamespace(uuid="56-78"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: asked.append(device) or newer)
    found = here.visible(build)
    assert (found.names, found.problem) == (["12-34", "56-78"], "")
    assert asked == []  # not in this process
    monkeypatch.setattr(torch, "get_device_module", lambda device: devices(SimpleNamespace()))
    # Ranks with a GPU each, by a torch that tells no UUID.
    assert [here.visible(build, {mask: one}).names for one in "01"] == [[f"{mask}=0 0"], [f"{mask}=1 0"]]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: os._exit(3), "the process in which torch counted its devices ended with code 3"),
        (lambda: time.sleep(300), "torch has not counted its devices within 0.5 s"),
    ],
)
def test_a_driver_that_fails_beneath_torch_is_told(
    call: Callable[[], Any], problem: str, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    monkeypatch.setattr("runner.hardware.gpus._PATIENCE", 0.5 if "0.5" in problem else 60.0)
    monkeypatch.setattr(torch, "get_device_module", lambda device: call())
    found = host().visible(ROCM)
    assert (found.names, found.problem) == ([], problem)


@pytest.mark.parametrize(
    ("name", "shown", "allotted"),
    [
        ("slurm-step", FOUR[:2], "SLURM_STEP_GPUS=0,1"),
        ("slurm-gpu-per-task", FOUR[1:2], "SLURM_STEP_GPUS=1"),
        ("slurm-batch", FOUR[:2], "SLURM_JOB_GPUS=0,1"),
        ("slurm-step-without", FOUR, ""),  # which are all there only where Slurm does not confine its steps
        ("pbs-uuids", [FOUR[2], FOUR[1]], "CUDA_VISIBLE_DEVICES=GPU-b2,GPU-a1"),
    ],
)
def test_what_schedulers_set(name: str, shown: list[str], allotted: str, host: Host) -> None:
    lines = (DATA / f"{name}.env").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    every = host(nvidia=[Nvidia(uuid) for uuid in FOUR])
    found = every.visible(CUDA, environment)
    assert (found.names, found.allotted) == (shown, allotted)
    assert bool(found.problem) == (not shown)


@pytest.mark.parametrize(
    ("environment", "allotted"),
    [
        ({"SLURM_JOB_GPUS": "0"}, "SLURM_JOB_GPUS=0"),  # the first GPU
        ({"SLURM_GPUS_ON_NODE": "0", "SLURM_JOB_GPUS": ""}, ""),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_ID": "3"}, ""),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_ID": "4294967291"}, "SLURM_JOB_GPUS=0,1"),  # the batch script's
        ({"SLURM_GPUS_ON_NODE": "2"}, "SLURM_GPUS_ON_NODE=2"),
        ({"SLURM_GPUS_PER_NODE": "a100:2"}, "SLURM_GPUS_PER_NODE=a100:2"),
        ({"PBS_NGPUS": "4"}, "PBS_NGPUS=4"),
        ({"PBS_NGPUS": "0"}, ""),
        ({"LSB_JOBID": "1", "LSB_GPU_ALLOC": "gpu000/0"}, "LSB_GPU_ALLOC=gpu000/0"),
        ({"LSB_JOBID": "1", "LSB_GPU_ALLOC": " "}, ""),
        ({"SLURM_GPUS_ON_NODE": "", "SLURM_GPUS": " ", "SLURM_GPUS_PER_NODE": "a100:0,v100:0"}, ""),
        ({"SLURM_GPUS_PER_TASK": "a100:0,v100:1"}, "SLURM_GPUS_PER_TASK=a100:0,v100:1"),
        ({"PBS_JOBID": "1.head", "CUDA_VISIBLE_DEVICES": "GPU-1"}, "CUDA_VISIBLE_DEVICES=GPU-1"),
        ({"LSB_JOBID": "1", "CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"LSB_JOBID": "1"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ""),
    ],
)
def test_what_a_scheduler_has_allotted(environment: dict[str, str], allotted: str, host: Host) -> None:
    assert host().visible(FOR_CPUS, environment).allotted == allotted


def test_torques_file_allots_the_gpus_that_it_lists(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "12.headgpu"
    for text, allotted in (("node7-gpu0\n", f"PBS_GPUFILE={file}"), (" \n\n", "")):
        file.write_text(text)
        assert host().visible(FOR_CPUS, PBS_JOBID="12.head", PBS_GPUFILE=str(file)).allotted == allotted


AMD = {"files": ["kfd"]}


@pytest.mark.parametrize(
    ("build", "shown", "environment", "problem"),
    [
        (CUDA, AMD, {"ROCR_VISIBLE_DEVICES": "0"}, "+cu130 is built for NVIDIA's, and the GPUs here are AMD's"),
        (CUDA, AMD, {}, ""),  # many processors have one of AMD's
        (FOR_CPUS, AMD, {"SLURM_JOB_GPUS": "0"}, "+cpu is built for CPUs only, and the GPUs here are AMD's"),
        (FOR_CPUS, AMD, {}, ""),
        (FOR_CPUS, {"nvidia": [Nvidia("GPU-1")]}, {}, "+cpu is built for CPUs only, and the GPUs here are NVIDIA's"),
    ],
)
def test_why_none_can_be_used(
    build: TorchBuild, shown: dict[str, Any], environment: dict[str, str], problem: str, host: Host
) -> None:
    found = host(**shown).visible(build, environment)
    assert (found.names, found.problem) == ([], problem and f"torch 2.14.0{problem}")


@pytest.mark.parametrize(
    ("lines", "maker"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n", "nvidia"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831'\nxpu: Optional[str] = None\n", "amd"),
        ("cuda = None\nhip = None\nxpu = '20250301'\n", "intel"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ""),
    ],
)
def test_whose_gpus_torch_is_built_for(lines: str, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"from typing import Optional\n__version__ = '2.14.0+x'\ndebug = False\n{lines}"
    (tmp_path / "version.py").write_text(text)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("runner.versions.torch_build.find_spec", lambda name: spec)
    assert torch_build() == TorchBuild("2.14.0+x", maker)
