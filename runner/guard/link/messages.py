"""Messages between the guards of a job, one class per kind, and their form as JSON.

The rank whose guard has told a message goes beside it. The guards join their link once the ranks have compared their
versions. These may differ in ``explain`` and ``doctor`` only, where a guard may not know what another tells.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass

from runner.guard.hang.collectives import Call
from runner.guard.report.failure import Failure


@dataclass(frozen=True)
class Message:
    """A message of a guard."""


@dataclass(frozen=True)
class ToHub(Message):
    """A kind of message that only rank 0's guard receives. The other kinds go to all guards."""


@dataclass(frozen=True)
class Alive(Message):
    """A sign of life. The link sends it by itself, and no guard is woken by it."""


@dataclass(frozen=True)
class Joined(Message):
    """The rank's guard has joined the link. Its agent sends it by itself."""


@dataclass(frozen=True)
class Left(Message):
    """The rank's guard leaves the link, after all that it has told."""


@dataclass(frozen=True)
class Gone(Message):
    """The rank's processes, its agent or its host are no longer there. The hub tells it; of the hub itself each agent's link does."""

    why: str


@dataclass(frozen=True)
class Apart(Message):
    """This guard could not join. Its own link tells it."""

    why: str  # address and error


@dataclass(frozen=True)
class HostName(ToHub):
    """A guard that joins names its host."""

    name: str | None


@dataclass(frozen=True, kw_only=True)
class Failed(Message):
    """The rank's worker has failed in this attempt, or was ended, so all ranks end."""

    attempt: int
    again: bool  # its guard starts it again, as all do then
    failure: Failure | None  # the job's first, as far as it is known


@dataclass(frozen=True)
class Ends(Message):
    """All workers end by themselves, with this exit code and for this reason; the rank's worker has said so."""

    code: int
    why: str


@dataclass(frozen=True)
class Returned(Message):
    """The rank's worker has ended with code 0 in this attempt, or is about to: who waits for it in a collective waits in vain."""

    attempt: int
    how: str  # "": by itself


@dataclass(frozen=True)
class Done(Message):
    """The rank's worker has ended well in this attempt; told where ranks may be started again."""

    attempt: int


@dataclass(frozen=True)
class Busy(ToHub):
    """The rank's worker does something for which it may take longer than for a step, such as a hook; or no longer."""

    attempt: int
    is_busy: bool


@dataclass(frozen=True)
class Patient(Message):
    """Rank 0's guard: some rank is busy, so those that wait for it have not hung; or none is any more."""

    attempt: int
    is_needed: bool


@dataclass(frozen=True)
class Reason(ToHub):
    """Why the rank's worker counts as hung."""

    text: str
    is_stopped: bool = False  # by a signal, wherever it was
    option: str = "--hang-timeout"  # that allows more
    is_connecting: bool = False  # in no collective: a process group or a connection may be in the making
    attempt: int = 0  # how often the ranks had been started again


@dataclass(frozen=True)
class Show(Message):
    """Rank 0's guard asks all others where their workers of this attempt are."""

    attempt: int


@dataclass(frozen=True)
class Stacks(ToHub):
    """The answer to ``Show``."""

    attempt: int
    text: str | None  # None: the worker has ended well
    calls: list[Call]  # empty: it did not answer


@dataclass(frozen=True)
class Hung(Message):
    """Rank 0's guard has reported a hang, so all ranks end."""

    failure: Failure


_KINDS: dict[str, type[Message]] = {kind.__name__: kind for base in (Message, ToHub) for kind in base.__subclasses__()}


def attempt_of(message: Message) -> int | None:
    """Return the attempt that a message is about; None for the whole job."""
    attempt: int | None = getattr(message.failure if isinstance(message, Hung) else message, "attempt", None)
    return attempt


def packed(rank: int, message: Message) -> list[object]:
    """Return a message's form on the link: the rank of its guard, its kind and its fields."""
    return [rank, type(message).__name__, asdict(message)]


def unpacked(sent: object) -> tuple[int, Message]:
    """Return the rank and the message. Anything else, from another version of the runner, counts as a sign of life."""
    with suppress(KeyError, TypeError):
        match sent:
            case [int(rank), str(kind), dict(fields)]:
                if fields.get("failure") is not None:
                    fields["failure"] = Failure(**fields["failure"])
                if "calls" in fields:
                    fields["calls"] = [Call(**call) for call in fields["calls"]]
                return rank, _KINDS[kind](**fields)
    return 0, Alive()
