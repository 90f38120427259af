"""The engines that ``--engines`` names, checked against the job. This module imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.backends.registry import backends
from runner.backends.selection import network_backend, network_backends
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.settings import settings_in
from runner.job import Job
from runner.options.command import given_in
from runner.parallel.mesh import Degrees, Layout, lay_out
from runner.parallel.registry import strategy_names
from runner.parallel.settings import ParallelSettings

_MEASURED = [backend for backend in backends().values() if backend.is_measured]
BACKENDS = [backend.name for backend in _MEASURED if backend.is_process_group]
LIBRARIES = [backend.name for backend in _MEASURED if not backend.is_process_group]  # with a strategy of that name
BARE, ALONE = "bare", "alone"
KINDS = (*dict.fromkeys([*strategy_names(), *LIBRARIES]), BARE)

_LAYOUT = ("strategy", "tp", "pp")  # written without the option's name
_OPTIONS = [one.flag.removeprefix("--") for one in settings_in(ParallelSettings).values() if one.name not in _LAYOUT]
_DEGREE = re.compile(r"(tp|pp)(\d+)")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An engine.

    Attributes:
        name: its shown name, with its backend if it has one.
        kind: a strategy, ``bare`` or ``alone``.
        flags: its options of a workload, if the task depends on them.
        backend: backend of its process groups; "" if it has none.
        layout: each rank's part of the model and the data.
    """

    name: str
    kind: str
    flags: tuple[str, ...] = ()
    backend: str = ""
    layout: Layout


def alone(job: Job) -> Choice:
    """Return the engine by which every rank trains for itself."""
    return Choice(name=ALONE, kind=ALONE, layout=lay_out(job.topology, Degrees.of(job.size)))


@raised_on_all_ranks()
def chosen(job: Job, wanted: Sequence[str] | None, arguments: Sequence[str]) -> list[Choice]:
    """Return the engines that are asked for, or all usable ones with the whole model on every rank.

    Args:
        arguments: the workload's arguments.

    Raises:
        UsageError: there is no such engine, or it cannot be used here, or its options do not go together.
    """
    if wanted is None:
        return list(_defaults(job, arguments))
    return list({choice.name: choice for choice in (_choice(job, text, arguments) for text in wanted)}.values())


@raised_on_all_ranks()
def supported(choices: Sequence[Choice], options: ParallelSettings, *, asked_for: bool) -> list[Choice]:
    """Return the engines, without DDP by hand if it does not know the workload's options.

    Args:
        asked_for: whether the user has named the engines.

    Raises:
        UsageError: DDP by hand is named, and does not know the options.
    """
    by_hand = [choice for choice in choices if choice.kind == BARE]
    unknown = _unknown_by_hand(options)
    if by_hand and unknown and asked_for:
        raise UsageError(
            f"--engines {by_hand[0].name}: DDP by hand knows no {', '.join(unknown)}", fix="leave it out, or take ddp"
        )
    return [choice for choice in choices if not (choice in by_hand and unknown)]


def _unknown_by_hand(options: ParallelSettings) -> list[str]:
    """Return the options that differ from their defaults, and that DDP by hand does not know."""
    known = ParallelSettings(
        clip_norm=options.clip_norm,
        compile=options.compile,
        precision="bf16" if options.precision == "bf16" else "fp32",  # fp16 would need a scaler
    )
    return [
        one.flag
        for one in settings_in(ParallelSettings).values()
        if getattr(options, one.name) != getattr(known, one.name)
    ]


def _defaults(job: Job, arguments: Sequence[str]) -> Iterator[Choice]:
    """Yield the default engines, without a library that does not support the workload's options."""
    network = network_backend(job)
    faster = [name for name in BACKENDS if name not in network_backends().values()]
    for name in (network, *faster, *LIBRARIES):
        if not backends()[name].unavailable_reason(job):
            try:
                yield _choice(job, f"ddp:{name}" if name in BACKENDS else name, arguments)
            except UsageError:
                if name not in LIBRARIES:
                    raise
    yield _choice(job, f"{BARE}:{network}", arguments)


def _choice(job: Job, text: str, arguments: Sequence[str]) -> Choice:
    how, _, backend = text.partition(":")
    kind, flags = _read(text, how)
    is_library = kind in LIBRARIES
    if (backend and backend not in BACKENDS) or (is_library and backend):
        raise UsageError(_no_engine(text))
    backend = "" if is_library else backend or network_backend(job)
    try:
        if problem := backends()[backend or kind].unavailable_reason(job):
            raise UsageError(problem)
        if kind == BARE and flags:
            raise UsageError(f"DDP by hand takes no {' '.join(flags)}", fix="leave it out, or take ddp")
        strategy = [] if kind == BARE else [f"--strategy={kind}"]
        layout = lay_out(job.topology, given_in([*arguments, *strategy, *flags]).parallel().degrees(job.size))
    except UsageError as error:
        error.message = f"--engines {text}: {error.message}"
        raise
    if flags or kind not in (BARE, ParallelSettings.strategy):
        flags = [*strategy, *flags]
    name = ":".join(filter(None, (how, backend)))
    return Choice(name=name, kind=kind, flags=tuple(flags), backend=backend, layout=layout)


def _read(text: str, how: str) -> tuple[str, list[str]]:
    """Return the kind and a workload's other options for ``fsdp+tp2+pp-schedule=zbv``."""
    kinds, flags = [], []
    for part in how.split("+"):
        if part in KINDS:
            kinds.append(part)
        elif degree := _DEGREE.fullmatch(part):
            flags.append(f"--{degree[1]}={degree[2]}")
        elif part.partition("=")[0] in _OPTIONS:
            flags.append(f"--{part}")
        else:
            raise UsageError(_no_engine(text))
    if len(kinds) > 1:
        raise UsageError(f"--engines {text}: {' and '.join(kinds)} are two strategies", fix="name one")
    return kinds[0] if kinds else ParallelSettings.strategy, flags


def _no_engine(text: str) -> str:
    return (
        f"--engines: no engine {text!r}; there are {', '.join(KINDS)}, with +tpN, +ppN and other parallel options "
        f"(tp2+fsdp, pp2+pp-schedule=zbv), and a backend after them: {', '.join(f':{name}' for name in BACKENDS)}"
    )
