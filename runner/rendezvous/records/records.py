"""The records of all ranks, stored by field: a value that many ranks share is stored once.

At 10,000 ranks a list of dicts is 58 MB on every rank, though most values are the same on all ranks, or on a host.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, overload

from runner.rendezvous.records.record import RankRecord

# A rank's record as it is sent: numbers and texts as they are, all else as JSON text.
Flat = dict[str, str | int | float | None]

_MOST_FIELDS = 64
_FIELDS = tuple(field.name for field in fields(RankRecord))
_JSON = "json:"  # prefix of JSON text


def flat(record: RankRecord) -> Flat:
    """The record with every field as a number, a text or None."""
    return {name: _flat(getattr(record, name)) for name in _FIELDS}


def is_flat(value: Any) -> bool:
    """Whether a received value is a rank's flat record."""
    return (
        isinstance(value, dict)
        and len(value) <= _MOST_FIELDS
        and all(isinstance(name, str) for name in value)
        and all(field is None or isinstance(field, str | int | float) for field in value.values())
    )


def _flat(value: Any) -> str | int | float | None:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str) and not value.startswith(_JSON):
        return value
    return _JSON + json.dumps(value)


def _whole(value: Any) -> Any:
    return json.loads(value[len(_JSON) :]) if isinstance(value, str) and value.startswith(_JSON) else value


class Records(Sequence[RankRecord]):
    """All ranks' records, in rank order."""

    def __init__(self, size: int, columns: Mapping[str, tuple[Sequence[Any], Sequence[int] | None]]) -> None:
        """``columns``: for each field its distinct values and each rank's index into them; None if there is one value."""
        self._size = size
        # (If all ranks differ the index is 0, 1, 2, ….)
        self._columns = {
            name: (_compact([_whole(v) for v in values]), range(size) if 1 < len(values) == size else index)
            for name, (values, index) in columns.items()
        }

    @classmethod
    def of(cls, records: Sequence[RankRecord]) -> Records:
        """The records of ranks 0, 1, …"""
        return cls(len(records), _columns([flat(record) for record in records]))

    @classmethod
    def received(cls, message: Any) -> Records:
        """The records that ``packed()`` made ``message`` of."""
        columns = {
            name: (values, _unpacked(packed) if packed else None)
            for name, (values, packed) in message["fields"].items()
        }
        return cls(message["size"], columns)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, rank: int) -> RankRecord: ...
    @overload
    def __getitem__(self, rank: slice) -> list[RankRecord]: ...
    def __getitem__(self, rank: int | slice) -> RankRecord | list[RankRecord]:
        if isinstance(rank, slice):
            return [self[one] for one in range(*rank.indices(self._size))]
        if not -self._size <= rank < self._size:
            raise IndexError(rank)
        known = ((name, self._columns[name]) for name in _FIELDS if name in self._columns)
        return RankRecord(**{name: values[index[rank] if index else 0] for name, (values, index) in known})

    def __iter__(self) -> Iterator[RankRecord]:
        return (self[rank] for rank in range(self._size))

    def of_field(self, field: str) -> tuple[Sequence[Any], Sequence[int] | None]:
        """A field's distinct values, and each rank's index into them; None if all ranks have the first."""
        return self._columns.get(field, ([None], None))

    def column(self, field: str) -> list[Any]:
        """Every rank's value of a field."""
        values, index = self.of_field(field)
        return [values[number] for number in index] if index else [values[0]] * self._size

    def by_value(self, field: str) -> list[tuple[Any, list[int]]]:
        """The values of a field, each with the ranks that have it, most ranks first."""
        values, index = self.of_field(field)
        ranks: list[list[int]] = [[] for _ in values]
        for rank in range(self._size):
            ranks[index[rank] if index else 0].append(rank)
        return sorted(zip(values, ranks, strict=True), key=lambda item: -len(item[1]))


def _compact(values: list[Any]) -> Sequence[Any]:
    """Store whole numbers, such as process ids, in eight bytes each and not in thirty-six."""
    if all(type(value) is int and -(2**63) <= value < 2**63 for value in values):
        return array("q", values)
    return values


def packed(records: Sequence[Flat]) -> dict[str, Any]:
    """All records as plain data to send, equal values once. (At 10,000 ranks some 100 KB instead of 15 MB.)"""
    fields = {
        name: (values, base64.b64encode(zlib.compress(array("I", index), 1)).decode() if index else "")
        for name, (values, index) in _columns(records).items()
    }
    return {"size": len(records), "fields": fields}


def _unpacked(text: str) -> array[int]:
    index = array("I")
    index.frombytes(zlib.decompress(base64.b64decode(text)))
    return index


def _columns(records: Sequence[Flat]) -> dict[str, tuple[list[Any], Sequence[int] | None]]:
    columns: dict[str, tuple[list[Any], Sequence[int] | None]] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        numbers: dict[Any, int] = {}
        index = array("I", bytes(4 * len(records)))
        for rank, record in enumerate(records):
            index[rank] = numbers.setdefault(record.get(name), len(numbers))
        columns[name] = (list(numbers), index if len(numbers) > 1 else None)
    return columns
