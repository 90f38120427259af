"""The hosts of a launcher's command line, and the same command on some of these hosts.

Only the launcher's own options are replaced: the one that names the hosts, or a file of them, the number of ranks, and srun's
number of nodes. What the command says of a host (``node1:4``, ``node1 slots=4``) stays as it is. A command that names no hosts
runs on those of its Slurm or PBS job.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import UsageError
from runner.launch.commands import LaunchCommand, command_of
from runner.launch.host_lists import expand_hosts, hosts_of_job


@dataclass(frozen=True, kw_only=True)
class CommandHost:
    """A host as the command names it."""

    name: str
    entries: tuple[str, ...]  # that name it; several where a list has a host once per rank
    slots: int


@dataclass(frozen=True, kw_only=True)
class CommandHosts:
    """A launcher with its options, and the hosts it may use."""

    words: Sequence[str]
    launcher: LaunchCommand
    option: str  # that names the hosts, with its dashes
    hosts: Sequence[CommandHost]  # all, the spare ones last
    working: int  # how many the first start takes
    ranks: int | None  # of the first start; None: the command does not say it

    def name_of(self, name: str, addresses: Sequence[str]) -> str | None:
        """Return the command's name of a host with this own name and these addresses; None if it does not name it."""
        by_name = (host.name for host in self.hosts if _are_one(host.name, name))
        by_address = (
            host.name for host in self.hosts if addresses and _addresses_of(host.name).intersection(addresses)
        )
        return next(itertools.chain(by_name, by_address), None)

    def without(self, left_out: Iterable[str]) -> list[CommandHost]:
        """Return the hosts of the next start: the first that are not left out, no more than in the first start."""
        left = [host for host in self.hosts if not any(_are_one(host.name, name) for name in left_out)]
        return left[: self.working]

    def ranks_on(self, hosts: Sequence[CommandHost]) -> int | None:
        """Return the number of ranks for these hosts: as many per slot as in the first start, and not more in all."""
        if self.ranks is None:
            return None
        slots = sum(host.slots for host in self.hosts[: self.working])
        return min(self.ranks, self.ranks * sum(host.slots for host in hosts) // slots)

    def command(self, hosts: Sequence[CommandHost], file: Path) -> list[str]:
        """Return the launcher's words for these hosts. If a file names the hosts, write ``file``."""
        entries = [entry for host in hosts for entry in host.entries]
        launcher, value = self.launcher, ",".join(entries)
        if self.option.lstrip("-") in launcher.files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
            value = str(file)
        words = _replaced(self.words, launcher, (*launcher.lists, *launcher.files), self.option, value)
        if (ranks := self.ranks_on(hosts)) is not None:
            words = _replaced(words, launcher, launcher.ranks, _dashed(launcher.ranks[0]), str(ranks))
        if launcher.nodes:
            words = _replaced(words, launcher, launcher.nodes, _dashed(launcher.nodes[0]), str(len(hosts)))
        return words


def read_hosts(words: Sequence[str], environment: Mapping[str, str], spares: int) -> CommandHosts:
    """Return the hosts of a command.

    Args:
        words: the launcher and its options.
        spares: number of hosts that the first start leaves unused.

    Raises:
        UsageError: the launcher is not known, its hosts are not, or there are not more than ``spares``.
    """
    launcher = _launcher_of(words)
    if other := _find(words, launcher, launcher.others):
        raise UsageError(
            f"supervise: --spares and --min-ranks do not go with {words[0]} {other.option}",
            fix="name the hosts that may be used",
        )
    if ":" in words:
        raise UsageError(
            "supervise: --spares and --min-ranks take one program, and the command has several, with a colon",
            fix="start one program, or leave them out",
        )
    named = _find(words, launcher, (*launcher.lists, *launcher.files))
    if named is None:
        option, hosts = launcher.added, _hosts_of_job(environment, launcher.entry)
    elif named.option.lstrip("-") in launcher.files:
        option, hosts = named.option, _read(_lines(named.value))
    else:
        option, hosts = named.option, _read(_names(named.value))
    if len(hosts) <= spares:
        raise UsageError(
            f"supervise: --spares {spares} leaves none of the hosts {', '.join(host.name for host in hosts)}",
            fix="name more hosts",
        )
    working = len(hosts) - spares
    return CommandHosts(
        words=words,
        launcher=launcher,
        option=option,
        hosts=hosts,
        working=working,
        ranks=_ranks(words, launcher, hosts, working, environment),
    )


def _launcher_of(words: Sequence[str]) -> LaunchCommand:
    launcher = command_of(words[0]) if words else None
    if launcher is None:
        name = os.path.basename(words[0]) if words else "no launcher"
        raise UsageError(
            f"supervise: --spares and --min-ranks cannot choose the hosts of {name}",
            fix="begin the command with mpirun, mpiexec or srun, or leave them out",
        )
    return launcher


def _ranks(
    words: Sequence[str],
    launcher: LaunchCommand,
    hosts: Sequence[CommandHost],
    working: int,
    environment: Mapping[str, str],
) -> int | None:
    """Return the number of ranks of the first start; None if it is unknown."""
    if found := _find(words, launcher, launcher.ranks):
        if not found.value.isdecimal():
            raise UsageError(f"supervise: {found.option} {found.value} is no number of ranks")
        return int(found.value)
    of_job = environment.get("SLURM_NTASKS", "")
    if not launcher.nodes or not of_job.isdecimal():
        return None
    slots = [host.slots for host in hosts]
    return int(of_job) * sum(slots[:working]) // sum(slots)  # srun's, on all hosts of the job


def _hosts_of_job(environment: Mapping[str, str], entry: str) -> list[CommandHost]:
    """Return the hosts of a Slurm or PBS job."""
    try:
        slots = hosts_of_job(environment)
    except (OSError, ValueError) as error:
        raise UsageError(f"supervise: the hosts of this job: {error}") from None
    if not slots:
        raise UsageError(
            "supervise: --spares and --min-ranks: the command names no hosts, and this is no Slurm or PBS job",
            fix="name the hosts by the launcher's option, for example --host a:4,b:4",
        )
    return [
        CommandHost(name=host, entries=(entry.format(host=host, slots=count),), slots=count)
        for host, count in slots.items()
    ]


def _read(entries: Iterable[str]) -> list[CommandHost]:
    """Return the hosts that entries name: ``a``, ``a:4``, ``a slots=4``, ``user@a``."""
    found: dict[str, list[str]] = {}
    slots: Counter[str] = Counter()
    for entry in entries:
        first = entry.split()[0] if entry.strip() else ""
        match = re.fullmatch(r"(?:[^@]+@)?([\w.-]+)(?::(\d+))?(?::.*)?", first)
        if match is None:
            raise UsageError(f"supervise: {entry!r} is no host", fix="name hosts as a:4 or a slots=4")
        count = match[2] or next(iter(re.findall(r"(?<![\w-])slots\s*=\s*(\d+)", entry)), "1")
        found.setdefault(match[1], []).append(entry)
        slots[match[1]] += int(count)
    return [CommandHost(name=name, entries=tuple(those), slots=slots[name]) for name, those in found.items()]


def _names(text: str) -> list[str]:
    """Return a list's entries; Slurm's short form becomes one for each host."""
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise UsageError(f"supervise: {error}", fix="name hosts as a:4,b:4, for srun as node[1-2]") from None


def _lines(file: str) -> list[str]:
    try:
        lines = [line.partition("#")[0].strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UsageError(f"supervise: cannot read the hosts in {file}: {error.strerror}") from None
    return [line for line in lines if line]


@dataclass(frozen=True)
class _Found:
    """An option with its value, in the words from start to stop."""

    start: int
    stop: int
    option: str
    value: str


def _find(words: Sequence[str], launcher: LaunchCommand, names: Sequence[str]) -> _Found | None:
    """Return the option that has one of these names.

    Raises:
        UsageError: there are two.
    """
    found = []
    for place, word in enumerate(words[1:], 1):
        option, equals, value = word.partition("=")
        if _is_one_of(word, names) and place + 1 < len(words):
            found.append(_Found(place, place + 2, word, words[place + 1]))
        elif equals and option.startswith("--") and _is_one_of(option, names):
            found.append(_Found(place, place + 1, option, value))
        elif launcher.has_joined_values and _is_one_of(word[:2], names) and not word.startswith("--"):
            found.append(_Found(place, place + 1, word[:2], word[2:]))
    if len(found) > 1:
        both = " and ".join(one.option for one in found[:2])
        raise UsageError(f"supervise: {words[0]} has {both}", fix="give it one of them")
    return found[0] if found else None


def _replaced(
    words: Sequence[str], launcher: LaunchCommand, names: Sequence[str], option: str, value: str
) -> list[str]:
    """Return the words with this option in place of the one that has one of these names, or after the launcher."""
    found = _find(words, launcher, names) or _Found(1, 1, option, value)
    return [*words[: found.start], option, value, *words[found.stop :]]


def _is_one_of(word: str, names: Sequence[str]) -> bool:
    return word.startswith("-") and word.removeprefix("-").removeprefix("-") in names


def _dashed(name: str) -> str:
    return f"--{name}" if len(name) > 2 else f"-{name}"


def _addresses_of(name: str) -> set[str]:
    """Return the known addresses of a host, which a command names by name or address."""
    with contextlib.suppress(OSError):
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(name, None)}
    return {name}


def _are_one(name: str, other: str) -> bool:
    """Return whether two names belong to one host: one may have its domain and the other not."""
    if name == other:
        return True
    (first, _, domain), (second, _, other_domain) = name.partition("."), other.partition(".")
    return first == second and not (domain and other_domain)
