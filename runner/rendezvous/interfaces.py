"""This host's network interfaces: which addresses others may reach it by, and which one reaches an address."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping

# Bridges and tunnels of containers and virtual machines: they are up, but lead to no other host of the job.
_VIRTUAL = ("docker", "virbr", "br-", "cni", "flannel", "podman", "lxc", "tun", "tap", "veth")


def own_addresses(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """(interface, address) pairs that may be reached from other hosts, best first.

    First the interfaces that the user named in ``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME``, then by
    link speed, so that a fabric comes before the management network. Loopback and link-local
    addresses, interfaces that are down, and virtual bridges are left out.
    """
    import psutil

    chosen = [environment.get(name, "") for name in _INTERFACE_VARIABLES]
    # NCCL: "^" begins a list of interfaces to leave out, "=" one of exact names.
    wanted = {name for names in chosen if not names.startswith("^") for name in names.lstrip("=").split(",")}
    states = psutil.net_if_stats()
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        state = states.get(interface)
        if state is None or not state.isup or (interface.startswith(_VIRTUAL) and interface not in wanted):
            continue
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6) and _is_reachable(address.address):
                key = (interface not in wanted, -state.speed, address.family == socket.AF_INET6, interface)
                found.append((key, (interface, address.address)))
    return [pair for _, pair in sorted(found)]


def absent_interfaces(environment: Mapping[str, str]) -> list[str]:
    """Those that ``GLOO_SOCKET_IFNAME`` names and this host does not have. (What NCCL is given are beginnings of names.)"""
    import psutil

    wanted = [name for name in environment.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    there = psutil.net_if_addrs() if wanted else {}
    return [name for name in wanted if name not in there]


_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def _is_reachable(address: str) -> bool:
    number = ipaddress.ip_address(address.partition("%")[0])
    return not (number.is_loopback or number.is_link_local)


def is_loopback(interface: str) -> bool:
    """Whether an interface leads to this host only."""
    import psutil

    addresses = psutil.net_if_addrs().get(interface, [])
    numbers = [a.address.partition("%")[0] for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
    return any(ipaddress.ip_address(number).is_loopback for number in numbers)


def interface_towards(host: str) -> str:
    """The interface by which this host would send to an address or name; "" if unknown."""
    import psutil

    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # a datagram socket: no packet is sent
            source = probe.getsockname()[0].partition("%")[0]
        for interface, addresses in psutil.net_if_addrs().items():
            if any(a.address.partition("%")[0] == source for a in addresses):
                return interface
    return ""
