"""Errors are data: what is wrong, what fixes it, and whether every rank says so."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from runner.base.errors import LaunchError, RefusedError, RunnerError, UsageError, raised_on_all_ranks
from runner.launch.detect import detect
from runner.rendezvous.rendezvous import choose_way
from runner.rendezvous.transport.endpoint import NoMpi
from runner.tools.workloads import load_workload


def test_an_error_is_printed_with_its_fix() -> None:
    error = RunnerError("the port is taken", fix="set another")
    assert str(error) == "the port is taken; set another"
    assert (error.message, error.fix, error.on_all_ranks) == ("the port is taken", "set another", False)
    assert str(RunnerError("lost; nothing fixes it")) == "lost; nothing fixes it"


def test_an_error_that_is_sent_to_another_rank_stays_whole() -> None:
    with pytest.raises(RefusedError) as caught, raised_on_all_ranks():
        raise RefusedError("a", fix="b")
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (type(sent), str(sent), sent.fix, sent.on_all_ranks) == (RefusedError, "a; b", "b", True)


BY_HAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


def test_what_the_command_line_asks_for_is_refused_on_all_ranks() -> None:
    with pytest.raises(RunnerError, match="--rendezvous hosts: ") as caught:
        choose_way(detect(BY_HAND), "hosts")
    assert caught.value.on_all_ranks


@pytest.mark.parametrize("port", ["x", "0", "99999"])
def test_a_variable_that_is_wrong_on_a_rank_is_told_by_that_rank(port: str) -> None:
    with pytest.raises(LaunchError, match=f"MASTER_PORT={port} is not a port") as caught:
        choose_way(detect(BY_HAND | {"MASTER_PORT": port}))
    assert not caught.value.on_all_ranks


def test_what_a_workload_refuses_at_its_import_is_told_by_that_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from runner.base.errors import UsageError\nraise UsageError('no room in /scratch')\ndef main(run, argv): ...\n"
    )
    (tmp_path / "refuses_at_import.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="no room") as caught:
        load_workload("refuses_at_import", "compare")
    assert not caught.value.on_all_ranks
    with pytest.raises(UsageError, match="no workload refuses: compare") as caught:
        load_workload("refuses", "compare")
    assert caught.value.on_all_ranks


def test_why_mpi_is_not_used_is_data() -> None:
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    way = choose_way(detect(slurm | {"SLURM_STEP_NODELIST": "node[1-2]"}))
    assert (way.name, way.no_mpi and way.no_mpi.reason) == ("hosts", NoMpi.NOT_A_RANK)
    with pytest.raises(LaunchError) as caught:
        choose_way(detect(slurm))
    assert caught.value.fix.startswith("install mpi4py")
    assert caught.value.on_all_ranks
    with pytest.raises(LaunchError) as caught:
        choose_way(detect(slurm), restarts=True)
    assert caught.value.fix.startswith("set MASTER_ADDR")
