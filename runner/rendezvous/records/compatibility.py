"""Compare the records of all ranks, and refuse ranks that must not run together, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.base.errors import Policy, RefusedError, raised_on_all_ranks
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records
from runner.rendezvous.records.topology import Topology, ranks_text, topology_of

# The fields that must be equal on all ranks, and their names in messages.
_EQUAL = {
    "size": "the number of ranks",
    "launcher": "the launcher",
    "python": "Python",
    "torch": "torch",
    "runner": "the runner",
    "target": "the target",
    "digest": "the target's content",
    "arguments": "the arguments",
    "options": "the runner's options",
}
VERSIONS = ("python", "torch", "runner")


@raised_on_all_ranks()
def compare_ranks(everyone: Sequence[RankRecord], policy: Policy = Policy.STRICT) -> Topology:
    """Compare all ranks' records, and return the topology that they show.

    Args:
        policy: a diagnostic tool accepts ranks with different versions.

    Raises:
        RefusedError: ranks differ in something that must be equal, or one of them has a problem of its own.
    """
    records = everyone if isinstance(everyone, Records) else Records.of(everyone)
    if list(records.of_field("problem")[0]) != [None]:
        texts, fixes = [], []
        for problem, ranks in records.by_value("problem"):
            if problem is not None:
                where = "" if len(ranks) == len(records) else f" (on {_where(ranks, records)} only)"
                texts.append(f"{problem}{where}")
                fixes.append(records[ranks[0]].fix)
        raise RefusedError("; ".join(texts), fix="; ".join(dict.fromkeys(filter(None, fixes))))
    differences = []
    for field, title in _EQUAL.items():
        if field in VERSIONS and policy is Policy.DIAGNOSTIC:
            continue
        if len(records.of_field(field)[0]) > 1:
            values = records.by_value(field)
            shown = "; ".join(f"{_text(value)} on {_where(ranks, records)}" for value, ranks in values)
            differences.append(f"{title}: {shown}")
    if differences:
        raise RefusedError(
            f"the ranks differ in {' | '.join(differences)}",
            fix="start all of them with the same installation, files and arguments",
        )
    claimed = records.column("rank")
    if claimed != list(range(len(records))):
        raise RefusedError(f"the ranks say they are {claimed}, not 0 to {len(records) - 1}")
    return topology_of(records)


def _where(ranks: list[int], records: Records) -> str:
    hosts = ", ".join(dict.fromkeys(records[rank].host for rank in ranks))
    return f"{ranks_text(ranks)} ({hosts})"


def _text(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "none"
