"""Whose a program is that a command begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.launch.commands import COMMANDS, calls_torchrun, command_of, mpi_of


@pytest.mark.parametrize(
    ("program", "says", "whose"),
    [
        ("mpirun", "mpirun (Open MPI) 5.0.10", "openmpi"),
        ("mpiexec.openmpi", "mpiexec.openmpi (OpenRTE) 4.1.4", "openmpi"),
        ("prterun", "prterun (PRRTE) 3.0.12", "openmpi"),
        ("mpirun", "Intel(R) MPI Library for Linux* OS, Version 2021.16 Build 20250513", "intelmpi"),
        ("mpiexec.hydra", "HYDRA build details:", "mpich"),
        ("mpirun", "LAM 7.1.4", "an MPI unknown here"),
    ],
)
def test_an_mpirun_says_whose_it_is(program: str, says: str, whose: str, tmp_path: Path) -> None:
    (path := tmp_path / program).write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    assert mpi_of(str(path)) == whose
    assert command_of(str(path)) is COMMANDS.get(whose)


def test_other_programs_go_by_their_names(tmp_path: Path) -> None:
    assert command_of("/usr/bin/srun") is COMMANDS["srun"]
    assert command_of("jsrun") is None
    with pytest.raises(UsageError, match=r"mpirun --version: .*No such file"):
        command_of(str(tmp_path / "mpirun"))


def test_torchrun_is_called_as_a_program_or_a_module() -> None:
    assert calls_torchrun(["srun", "/opt/bin/torchrun"])
    assert calls_torchrun(["python", "-m", "torch.distributed.run"])
    assert not calls_torchrun(["mpirun", "python", "torchrun.py"])
