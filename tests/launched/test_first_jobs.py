"""Scripts of Lightning Fabric and Accelerate, unmodified, and the same trainings by the runner."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.launching import ROOT, ok, run, runner
from tests.results import losses

EXAMPLES = ROOT / "docs" / "train" / "examples"
FIRST_JOBS = EXAMPLES / "first_jobs"


def printed(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"\bloss ([\d.]+)$", output, re.MULTILINE)]


@pytest.fixture(scope="module")
def by_runner(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The last loss of the first job by the runner on two ranks: the mean over them."""
    folder = tmp_path_factory.mktemp("by_runner")
    found = printed(ok(runner(2, str(FIRST_JOBS / "by_runner.py"), cwd=folder)).stdout)
    assert len(found) == 2
    mean = sum(found) / 2
    assert mean == pytest.approx(losses(folder / "runs" / "by_runner")[-1], abs=1e-5)
    return mean


@pytest.mark.parametrize("name", ["by_fabric", "by_accelerate"])
def test_a_first_job_has_the_losses_of_the_runner(name: str, by_runner: float, tmp_path: Path) -> None:
    """Each rank prints its own; which samples of a step it has is the library's choice, and the mean is the same."""
    found = printed(ok(runner(2, str(FIRST_JOBS / f"{name}.py"), cwd=tmp_path)).stdout)
    assert len(found) == 2
    assert found[0] != found[1]
    assert sum(found) / 2 == pytest.approx(by_runner, abs=1e-5)


def test_a_first_job_has_the_losses_of_plain_pytorch_on_one_device(tmp_path: Path) -> None:
    plain, one = (
        printed(ok(run(sys.executable, str(FIRST_JOBS / f"{name}.py"), cwd=tmp_path)).stdout)
        for name in ("by_torch", "by_runner")
    )
    assert len(plain) == 1
    assert one == pytest.approx(plain, abs=1e-5)


def test_a_script_of_fabric_clips_and_saves_and_its_port_has_its_losses(tmp_path: Path) -> None:
    """In the order of the samples, as each shuffles in its own."""
    for name in ("fabric_script", "fabric_port"):
        text = (EXAMPLES / f"{name}.py").read_text()
        assert ", shuffle=True" in text
        (tmp_path / f"{name}.py").write_text(text.replace(", shuffle=True", ""))
    fabric = printed(ok(runner(2, "fabric_script.py", cwd=tmp_path)).stdout)
    assert fabric[-1] < 0.5 * fabric[0]
    assert (tmp_path / "checkpoint.ckpt").exists()
    ok(runner(2, "fabric_port.py", cwd=tmp_path))
    of_steps = losses(tmp_path / "runs" / "fabric_port")
    assert len(of_steps) == 24
    assert fabric == pytest.approx(of_steps[7::8], rel=5e-3)  # it prints three digits
