"""This host's network interfaces: which addresses others may reach it by, and which one reaches an address."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence

# Bridges and tunnels of containers and virtual machines. Most lead to no other host of the job; on some hosts one of them has
# the only address (OpenShift's br-ex).
_VIRTUAL = (
    *("docker", "virbr", "br-", "cni", "flannel", "podman", "lxc", "lxdbr", "tun", "tap", "veth", "cali", "cilium"),
    *("kube", "vmnet", "vnet", "ovs", "wg", "tailscale"),
)


def own_addresses(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """(interface, address) pairs that may be reached from other hosts, best first.

    First the interfaces that the user named in ``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME``, then by
    link speed, so that a fabric comes before the management network; virtual bridges and tunnels come last. Loopback and
    link-local addresses, and interfaces that are down, are left out.
    """
    import psutil

    chosen = [environment.get(name, "") for name in _INTERFACE_VARIABLES]
    # NCCL: "^" begins a list of interfaces to leave out, "=" one of exact names.
    wanted = {name for names in chosen if not names.startswith("^") for name in names.lstrip("=").split(",")}
    states = psutil.net_if_stats()
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        state = states.get(interface)
        if state is None or not state.isup:
            continue
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6) and _is_reachable(address.address):
                is_other, is_ipv6 = interface not in wanted, address.family == socket.AF_INET6
                key = is_other, is_virtual(interface), -state.speed, is_ipv6, interface
                found.append((key, (interface, address.address)))
    return [pair for _, pair in sorted(found)]


def is_virtual(interface: str) -> bool:
    """Whether an interface is one of those that containers and virtual machines use, by its name."""
    return interface.startswith(_VIRTUAL)


def absent_interfaces(environment: Mapping[str, str]) -> list[str]:
    """Return the interfaces that ``GLOO_SOCKET_IFNAME`` names and this host lacks. (NCCL takes beginnings of names.)"""
    import psutil

    wanted = [name for name in environment.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    there = psutil.net_if_addrs() if wanted else {}
    return [name for name in wanted if name not in there]


def nccl_interface(environment: Mapping[str, str]) -> list[str]:
    """The interface by which NCCL would connect this host's ranks, and its address with the network: ``ib0 10.1.0.7/16``.

    Empty if there is none. The rule is NCCL's (src/misc/socket.cc, ncclFindInterfaces): the first that is up, in the kernel's
    order, of those whose names begin with ib; else of all but docker, lo and virbr; else of docker; of lo; of virbr.
    """
    import psutil

    families = _NCCL_FAMILIES.get(environment.get("NCCL_SOCKET_FAMILY", ""), (socket.AF_INET, socket.AF_INET6))
    states = psutil.net_if_stats()
    found = [
        (name, address)
        for family in families
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == family and name in states and states[name].isup
        if not (family == socket.AF_INET6 and ipaddress.ip_address(address.address.partition("%")[0]).is_loopback)
    ]
    for is_wanted in _NCCL_RULE:
        for name, address in found:
            if is_wanted(name):
                own = ipaddress.ip_address(address.address.partition("%")[0])
                bits: int = own.max_prefixlen  # of a tunnel, which has no mask
                if address.netmask:
                    bits = int(ipaddress.ip_address(address.netmask)).bit_count()
                return [name, f"{own}/{bits}"]
    return []


_NCCL_FAMILIES = {"AF_INET": (socket.AF_INET,), "AF_INET6": (socket.AF_INET6,)}
_NCCL_RULE: tuple[Callable[[str], bool], ...] = (
    lambda name: name.startswith("ib"),
    lambda name: not name.startswith(("docker", "lo", "virbr")),
    lambda name: name.startswith("docker"),
    lambda name: name.startswith("lo"),
    lambda name: name.startswith("virbr"),
)


def share_a_network(interfaces: Sequence[Sequence[str]]) -> bool:
    """Whether these interfaces, one of each host as ``nccl_interface()`` gives it, reach one another by a common network.

    Bridges of containers do not, though they often have the same addresses everywhere.
    """
    if not all(interfaces):
        return False
    addresses = [ipaddress.ip_interface(address) for _, address in interfaces]
    return (
        len({address.network for address in addresses}) == 1
        and len({address.ip for address in addresses}) == len(addresses)
        and all(_is_reachable(str(address.ip)) for address in addresses)
        and not any(name.startswith(_VIRTUAL) for name, _ in interfaces)
    )


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


def is_elsewhere(host: str) -> bool:
    """Whether this is an address, and none of this host's; False for a name."""
    import psutil

    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    own = (one.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for one in addresses)
    return not number.is_loopback and host not in own


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
