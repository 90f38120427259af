"""The network that NCCL's log names, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.backends.fabric import LOG_VARIABLES, NcclNetwork, fast_networks, nccl_log, nccl_network, slow_choice

LOGS = Path(__file__).parents[2] / "data" / "nccl"
SOCKET = NcclNetwork(name="Socket")


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("nccl-2.18-socket", "NCCL version 2.18.3+cuda12.2: network Socket by enp10s0, ib0"),
        ("nccl-2.20-ib", "NCCL version 2.20.5+cuda12.4: network IB by mlx5_0, mlx5_1, with GPUDirect"),
        ("nccl-2.21-roce", "NCCL version 2.21.5+cuda12.4: network IB by mlx5_bond_6, mlx5_bond_7"),
        ("nccl-2.27-efa", "NCCL version 2.27.5+cuda12.9: network Libfabric (efa), without GPUDirect"),
        ("nccl-2.28-socket", "NCCL version 2.28.3+cuda12.9: network Socket by hsn0, hsn1"),
        ("rccl-2.18-cxi", "RCCL version 2.18.3+hip6.0: network AWS Libfabric (cxi), with GPUDirect"),
    ],
)
def test_logs(log: str, expected: str) -> None:
    assert str(nccl_network((LOGS / f"{log}.log").read_text())) == expected


def test_a_log_without_a_network() -> None:
    assert nccl_network("") is None
    assert nccl_network("node:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n") is None


def test_a_plugin_is_named() -> None:
    found = nccl_network((LOGS / "nccl-2.27-efa.log").read_text())
    assert found is not None
    assert found.plugin == "Libfabric (v11)"


@pytest.mark.parametrize(
    ("network", "fast", "said"),
    [
        (SOCKET, ["hsn0", "hsn1"], "although this host has hsn0, hsn1; load the site's aws-ofi-nccl"),
        (SOCKET, ["ib0", "mlx5_0"], "see that libibverbs is installed"),
        (SOCKET, [], ""),
        (NcclNetwork(name="IB"), ["mlx5_0"], ""),
        (NcclNetwork(name="AWS Libfabric"), ["cxi0"], ""),
    ],
)
def test_tcp_beside_a_fast_network_is_told(network: NcclNetwork, fast: list[str], said: str) -> None:
    assert said in slow_choice(network, fast)
    assert bool(said) == bool(slow_choice(network, fast))


def test_fast_networks_are_found_in_sysfs(tmp_path: Path) -> None:
    for name in ("class/net/eth0", "class/net/hsn0", "class/net/ib0", "class/infiniband/mlx5_0", "class/cxi/cxi0"):
        (tmp_path / name).mkdir(parents=True)
    assert fast_networks(tmp_path) == ["cxi0", "hsn0", "ib0", "mlx5_0"]


@pytest.mark.parametrize("name", LOG_VARIABLES)
def test_a_users_own_log_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "WARN")
    with nccl_log() as log:
        assert log is None


def test_the_log_is_gone_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:

    for name in LOG_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with nccl_log() as log:
        assert log is not None
        assert os.environ["NCCL_DEBUG_FILE"] == str(log)
        log.write_text("NCCL INFO Using network IB\n")
    assert not log.exists()
    assert not {*LOG_VARIABLES} & {*os.environ}
