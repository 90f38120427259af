"""On a machine with a GPU (one will do): NCCL, the mpi4py backend with a GPU's tensors, Horovod, the benchmarks.

What is about two GPUs has not been run yet: no machine with two was at hand.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from runner.hardware.resources import resources
from tests.launching import RUNNER, folder_of, mpirun_path, ok, own_lines, path_of, run, runner
from tests.results import losses

GPUS = resources(os.environ).gpus
two_gpus = pytest.mark.skipif(len(GPUS) < 2, reason="there is one GPU")

# What the runner and what torch find, a line each.
BOTH = """
import os
from runner.hardware.resources import resources
print(resources(os.environ).gpus)
import torch
print([f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())])
"""


@pytest.mark.needs("mpi4py")
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_operation_on_its_tensors(ranks: int) -> None:
    # Two ranks may share a GPU where NCCL is not asked; the runner gives each its own, so here the script takes it itself.
    done = ok(runner(ranks, "--device", "cpu", path_of("every_operation"), "cuda", timeout=600))
    assert done.stdout.count("checks") == ranks


@pytest.mark.parametrize(
    "where",
    [
        ["--backend", "nccl"],
        pytest.param(["--backend", "mpi4py", "--device", "cuda"], marks=pytest.mark.needs("mpi4py")),
        ["--strategy", "horovod", "--device", "cuda"],
    ],
    ids=lambda where: where[1],
)
def test_training_gives_what_the_cpu_gives(where: list[str], tmp_path: Path) -> None:
    options = ["--data", "digits", "--max-steps", "20", "--dtype", "float64", "--batch-size", "32"]
    for name, device in {"cpu": ["--device", "cpu"], "gpu": where}.items():
        ok(runner(1, *device, "workloads.mnist", *options, "--checkpoint-dir", str(tmp_path / name), timeout=300))
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-5)


def test_it_is_what_auto_takes() -> None:
    facts = json.loads(ok(runner(1, "explain", "--json")).stdout)
    assert facts["ranks"][0]["device"] == "cuda:0"
    assert facts["backend"]["name"] == "nccl"


@pytest.mark.skipif(not all(gpu.startswith("GPU-") for gpu in GPUS), reason="divided by MIG, or without NVML")
@pytest.mark.parametrize(
    "mask",
    [
        None,
        "0",
        "",
        "-1",
        "NoDevFiles",
        "0,0",
        "0,99,0",
        "99",
        "1,0",
        GPUS[0] if GPUS else "",
        GPUS[0][:12] if GPUS else "",
    ],
)
def test_masks_are_read_as_torch_reads_them(mask: str | None) -> None:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    found, by_torch = ok(
        run(sys.executable, "-c", BOTH, CUDA_DEVICE_ORDER="PCI_BUS_ID", **environment)
    ).stdout.splitlines()
    assert found == by_torch


def test_hidden_it_is_not_used_and_allotted_it_is_not_done_without() -> None:
    hidden = json.loads(ok(runner(2, "explain", "--json", CUDA_VISIBLE_DEVICES="")).stdout)
    assert [rank["device"] for rank in hidden["ranks"]] == ["cpu", "cpu"]
    lost = runner(1, "explain", CUDA_VISIBLE_DEVICES="99", SLURM_JOB_GPUS="0")
    assert (lost.returncode, "CUDA_VISIBLE_DEVICES=99 chooses none of the GPUs here" in own_lines(lost)[0]) == (2, True)


@two_gpus
def test_two_ranks_have_one_each_and_train_as_on_cpus(tmp_path: Path) -> None:
    options = ["--data", "digits", "--max-steps", "20", "--dtype", "float64", "--batch-size", "32"]
    for name, where in {"cpu": ["--device", "cpu"], "nccl": [], "mpi4py": ["--backend", "mpi4py"]}.items():
        ok(runner(2, *where, "workloads.mnist", *options, "--checkpoint-dir", str(tmp_path / name), timeout=300))
    for name in ("nccl", "mpi4py"):
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "cpu"), rel=1e-5), name


@two_gpus
def test_two_ranks_that_see_one_each_train_on_both(tmp_path: Path) -> None:
    """As srun --gpus-per-task=1 binds them, by number and by UUID."""
    training = [*RUNNER, "--device", "cuda", "workloads.linear", "--max-steps", "2"]
    first = ["-np", "1", "env", "CUDA_VISIBLE_DEVICES=1", *training]
    second = ["-np", "1", "env", f"CUDA_VISIBLE_DEVICES={GPUS[0]}", *training]
    assert "done: 2 steps" in ok(run(mpirun_path(), *first, ":", *second, cwd=tmp_path, timeout=300)).stdout


@two_gpus
@pytest.mark.parametrize("backend", ["nccl", "mpi4py"])
def test_no_thread_of_a_rank_makes_a_context_on_the_other_ranks_gpu(backend: str, tmp_path: Path) -> None:
    options = ["--strategy", "fsdp", "--save-async", "--backend", backend, "--checkpoint-dir", str(tmp_path)]
    done = ok(runner(2, "keeps_to_its_gpu", *options, cwd=folder_of("keeps_to_its_gpu"), timeout=300))
    for rank in range(2):
        assert f"rank {rank}: contexts on others: []" in done.stdout


def test_two_ranks_do_not_share_it() -> None:
    done = runner(2, "explain", CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 2
    assert "2 ranks on host" in done.stderr
    assert "but 1 GPU" in done.stderr


@pytest.mark.parametrize(
    "options", [[], ["--precision", "bf16", "--channels-last"], ["--compile"]], ids=["plain", "bf16", "compile"]
)
def test_resnet_trains_on_it(options: list[str]) -> None:
    size = ["--image-size", "64", "--batch-size", "8", "--iterations", "2", "--batches-per-iteration", "2"]
    done = ok(runner(1, "--device", "cuda", "workloads.resnet", *size, *options, timeout=300))
    assert "images/s" in done.stdout


LLAMA = ["workloads.llama", f"--text={__file__}", "--length=32", "--batch-size=4", "--max-steps=4", "--log-every=1"]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a Llama on the CPU."""
    folder = tmp_path_factory.mktemp("cpu")
    ok(runner(1, "--device", "cpu", *LLAMA, "--checkpoint-dir", str(folder), timeout=300))
    return losses(folder)


@pytest.mark.parametrize(
    "options",
    [
        "--strategy fsdp",
        "--strategy fsdp --offload cpu",  # gradients in host memory, whose norm limits them
        "--strategy zero1",
        "--strategy fsdp --activation-checkpointing full",
        "--precision bf16 --compile",
        "--strategy fsdp --precision bf16 --compile",
        "--precision fp16",
        "--save-async --save-every 2",
        "--profile 2-3",
    ],
)
def test_a_llama_trains_on_it_as_on_the_cpu(options: str, on_cpu: list[float], tmp_path: Path) -> None:
    """The strategies on a GPU."""
    job = [*LLAMA, *options.split(), "--checkpoint-dir", str(tmp_path)]
    done = ok(runner(1, "--device", "cuda", *job, timeout=600))
    if "fp16" in options:  # the first steps are left out, until the scale is small enough
        assert "done: 4 steps" in done.stdout
    else:
        assert losses(tmp_path) == pytest.approx(on_cpu, rel=0.02)
    if "--profile" in options:
        assert (tmp_path / "profile" / "rank-00000.json.gz").exists()
        assert "exposed comm." in done.stdout
    if "--save-async" in options:
        ok(runner(1, "--device", "cuda", *job, "--max-steps=6", "--resume", timeout=300))


@pytest.mark.needs("mpi4py")
def test_all_operations_by_all_backends(tmp_path: Path) -> None:
    sizes = ["--min", "64K", "--max", "64K", "--rounds", "1", "--json", str(tmp_path / "times.jsonl")]
    operations = ["allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast"]
    ok(runner(1, "bench", *operations, "--backend", "nccl,mpi4py,gloo", *sizes, timeout=300))
    found = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert {m["backend"] for m in found} == {"nccl", "mpi4py", "gloo"}
    assert all(m["wrong"] == 0 for m in found)


def test_the_doctor_finds_nothing() -> None:
    done = ok(runner(1, "doctor", "--only", "GPUs"))
    assert "GPU, driver" in done.stdout
