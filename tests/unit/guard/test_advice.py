"""What the first line of a failure says about what to do."""

from __future__ import annotations

import errno
import signal
import sys

import pytest
import torch

from runner.guard.report.failure import MORE_DISK, MORE_MEMORY, MORE_SHARED_MEMORY, after_error, after_signal

COLLECTIVES = "TORCH_DISTRIBUTED_DEBUG=DETAIL shows whether the ranks' collective calls differ"


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (
            ModuleNotFoundError("No module named 'apex'", name="apex"),
            f"install it for {sys.executable} on each host, or see that its folder is on PYTHONPATH there",
        ),
        (ModuleNotFoundError("No module named 'torch.apex'", name="torch.apex"), ""),
        (OSError(errno.ENOSPC, "No space left on device", "out/weights"), "make room there"),
        (OSError(errno.ENOSPC, "No space left on device"), MORE_DISK),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), MORE_DISK),
        (RuntimeError("[enforce fail at TensorImpl.cpp:12] numel == 3"), ""),
        (OSError(errno.ENOENT, "No such file or directory"), ""),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), MORE_MEMORY),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), MORE_MEMORY),
        (MemoryError(), MORE_MEMORY),
        (
            RuntimeError("unable to allocate shared memory(shm) for file </torch_7_0>: No space left on device (28)"),
            MORE_SHARED_MEMORY,
        ),
        (
            RuntimeError(
                "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
                "shared memory. Please try to raise your shared memory limit."
            ),
            MORE_SHARED_MEMORY,
        ),
        (RuntimeError("[enforce fail at pair.cc:444] op.preamble.length <= op.nbytes. 4400 vs 4000"), COLLECTIVES),
        (Exception("MPI_ERR_TRUNCATE: message truncated"), COLLECTIVES),
        (
            RuntimeError("[/pytorch/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"),
            f"a rank is missing, slow, or in another call; allow more with --collective-timeout; {COLLECTIVES}",
        ),
        (ValueError("the loss exploded"), ""),
    ],
)
def test_an_error_whose_cause_is_known_comes_with_what_to_do(error: BaseException, fix: str) -> None:
    assert after_error(error) == fix


def test_memory_that_torch_cannot_have_is_one_of_them() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert after_error(caught.value) == MORE_MEMORY


def test_a_signal_that_a_library_of_collectives_may_have_caused() -> None:
    assert after_signal(signal.SIGABRT, 2).endswith(COLLECTIVES)
    assert COLLECTIVES not in after_signal(signal.SIGABRT, 1)
    assert COLLECTIVES not in after_signal(signal.SIGKILL, 2)
    assert after_signal(signal.SIGUSR2, 2) == ""
