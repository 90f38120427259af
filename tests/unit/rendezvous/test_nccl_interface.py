"""Which interface NCCL would start by, and when the runner names another."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from runner.hardware.placement import Placement
from runner.job import Job
from runner.launch.detect import detect
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records
from runner.rendezvous.records.topology import topology_of
from runner.rendezvous.transport.endpoint import Endpoint
from runner.rendezvous.transport.interfaces import nccl_interface, share_a_network
from runner.torchrun.variables import settings

LO, DOCKER, VIRBR = "lo 127.0.0.1/8", "docker0 172.17.0.1/16", "virbr0 192.168.122.1/24"
MANAGEMENT, FAST, FABRIC = "eno1 10.0.0.7/24", "ens2 10.1.0.7/16", "ib0 10.2.0.7/16"


@pytest.mark.parametrize(
    ("interfaces", "family", "chosen"),
    [
        ([LO, MANAGEMENT, FAST, FABRIC], "", FABRIC),
        ([LO, DOCKER, VIRBR, MANAGEMENT, FAST], "", MANAGEMENT),
        ([LO, DOCKER, VIRBR], "", DOCKER),
        ([LO, VIRBR], "", LO),
        ([VIRBR], "", VIRBR),
        ([LO, "down:ib0 10.2.0.7/16", FAST], "", FAST),
        ([LO, "ens2 fd00::7/64", MANAGEMENT], "", MANAGEMENT),  # the kernel lists IPv4 first
        ([LO, MANAGEMENT, "ens2 fd00::7/64"], "AF_INET6", "ens2 fd00::7/64"),
        (["lo ::1/128"], "", ""),
        (["wg0 10.9.0.7/32"], "", "wg0 10.9.0.7/32"),
    ],
)
def test_nccls_own_choice(interfaces: list[str], family: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: dict[str, list[SimpleNamespace]] = {}
    for text in sorted(interfaces, key=lambda text: ":" in text.partition(" ")[2]):  # as psutil sorts them, by family
        name, _, address = text.removeprefix("down:").partition(" ")
        own, _, bits = address.partition("/")
        family_of_it = socket.AF_INET6 if ":" in own else socket.AF_INET
        length = 128 if ":" in own else 32
        packed = ((1 << length) - (1 << (length - int(bits)))).to_bytes(length // 8, "big")
        mask = socket.inet_ntop(family_of_it, packed) if int(bits) < length else None
        addresses.setdefault(name, []).append(SimpleNamespace(family=family_of_it, address=own, netmask=mask))
    states = {text.partition(" ")[0].removeprefix("down:"): not text.startswith("down:") for text in interfaces}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {n: SimpleNamespace(isup=up) for n, up in states.items()})
    assert " ".join(nccl_interface({"NCCL_SOCKET_FAMILY": family})) == chosen


@pytest.mark.parametrize(
    ("texts", "shared"),
    [
        (["ib0 10.2.0.1/16", "ib0 10.2.0.2/16", "ib1 10.2.7.3/16"], True),
        (["ib0 10.2.0.1/24", "ib0 10.2.1.2/24"], False),  # perhaps routed, which is not known
        (["podman0 10.88.0.1/16", "podman0 10.88.0.1/16"], False),
        (["usb0 192.168.5.1/24", "usb0 192.168.5.1/24"], False),  # to the board's own controller: the same on all hosts
        (["usb0 169.254.3.1/16", "usb0 169.254.3.2/16"], False),
        (["cni0 10.244.0.1/16", "cni0 10.244.0.2/16"], False),
        (["eth0 10.2.0.1/16", ""], False),
        (["eth0 fd00::1/64", "eth0 fd00::2/64"], True),
    ],
)
def test_which_interfaces_reach_one_another(texts: list[str], shared: bool) -> None:
    assert share_a_network([text.split() for text in texts]) is shared


def named(found: Sequence[str], towards_rank_0: str, environment: Mapping[str, str] = {}) -> str | None:
    """What NCCL is told on the last host, where ``found`` is NCCL's own choice on each host."""
    ranks = [
        RankRecord(rank=rank, size=len(found), host=f"node{rank}", host_key=f"node{rank}", nccl_interface=text.split())
        for rank, text in enumerate(found)
    ]
    context = detect(
        {"RANK": str(len(found) - 1), "WORLD_SIZE": str(len(found)), "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    )
    job = Job(
        context=replace(context, environment=environment),
        topology=topology_of(Records.of(ranks)),
        endpoint=Endpoint(host="10.1.0.1", port=1, interface=towards_rank_0, way="env"),
        rendezvous_why="",
        placements=(Placement(device="cuda", device_index=0, cores=8, threads=8, threads_source=""),) * len(found),
    )
    told = settings(job)
    assert told.get("GLOO_SOCKET_IFNAME") == (None if "GLOO_SOCKET_IFNAME" in environment else towards_rank_0)
    return told.get("NCCL_SOCKET_IFNAME")


def test_nccl_keeps_its_own_choice_where_that_leads_to_the_others() -> None:
    """So a job that met on the management network sends its data by the fabric."""
    assert named(["ib0 10.2.0.1/16", "ib0 10.2.0.2/16"], "eno1") is None
    assert named(["eth0 10.0.1.5/24", "eth0 10.0.2.5/24"], "eth0") is None  # a routed network
    assert named(["docker0 172.17.0.1/16"], "lo") is None  # one host


def test_nccl_is_told_where_its_own_choice_leads_nowhere() -> None:
    assert named(["podman0 10.88.0.1/16", "podman0 10.88.0.1/16"], "ens2") == "=ens2"
    assert named(["ens2 10.1.0.1/16", "ib0 10.2.0.2/16"], "ens2") == "=ens2"
    assert named(["podman0 10.88.0.1/16"] * 2, "ens2", {"NCCL_SOCKET_IFNAME": "^podman"}) is None
