"""Settings declared once: a frozen dataclass per subject, whose fields are the options.

A field says its default, help, values and group. The parser, both helps, ``--config FILE``, ``settings.toml``, what a resumed run
compares and the reference page follow from the fields. ``Settings`` of a workload is a subclass: it gives shared fields defaults of
its own, and its own fields are its own options::

    @dataclass(frozen=True, kw_only=True)
    class Options(Settings):
        epochs: int = 15
        momentum: float = option(0.9, "momentum of SGD")

Imports no torch.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import sys
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from runner.base.errors import UsageError
from runner.base.formats import check_format
from runner.base.quantities import nonempty_path

_FORMAT = 1  # of the files that runs leave; one without a number is a user's
_KEY = "option"  # of a field's metadata

# The groups in the order in which people need them, with what their title says beside the name.
GROUPS = {
    "training": "",
    "checkpoints": "step-N/ in --checkpoint-dir: complete, or not there",
    "parallel": "how a step is computed by all ranks together",
    "data": "",
    "logging": "written by rank 0",
    "runner": "how the job runs",
}
OWN = "workload"  # the group of fields that a workload adds and puts in no other


@dataclass(frozen=True, kw_only=True)
class Option:
    """The description of a setting beside its name and default.

    Attributes:
        help: without the default, which is shown after it.
        parse: makes the value of a text, or raises argparse.ArgumentTypeError or ValueError; None: by the field's type.
        choices: the values that there are, or their texts; or a function that knows them once other packages are loaded.
        metavar: what stands for the value in the help.
        group: one of ``GROUPS``, or a workload's own.
        advanced: shown by ``--help-all`` only.
        hidden: for programs that start the runner; never shown.
        changes: whether another value gives another result, so that a resumed run says what has changed.
        bare: the value of the option without one; None: it needs one.
        shows: the default as the help says it; "": as it is, None: not at all.
        text: makes a text of a value, which ``parse`` reads again.
    """

    help: str = ""
    parse: Callable[[str], Any] | None = None
    choices: Collection[Any] | Callable[[], Collection[Any]] | None = None
    metavar: str | None = None
    group: str = OWN
    advanced: bool = False
    hidden: bool = False
    changes: bool = False
    bare: Any = None
    shows: str | None = ""
    text: Callable[[Any], str] = str


def option(default: Any, help: str | None = None, **about: Any) -> Any:
    """A field that is an option: ``lr: float = option(1e-3, "learning rate", parse=positive_float)``.

    Args:
        help: one phrase; None, as any other argument of ``Option`` that is not given: as the field is declared in a base class.
    """
    said = about if help is None else {"help": help, **about}
    return field(default=default, metadata={_KEY: said})


@dataclass(frozen=True)
class DeclaredSetting:
    """A field of a settings class: its name, default, and what is said of it."""

    name: str
    default: Any
    about: Option
    type: type = str  # of its values
    is_optional: bool = False  # whether None is one
    is_list: bool = False  # a tuple of such values: the option is given once for each

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> list[str]:
        """The texts of the values that there are."""
        choices = self.about.choices or ()
        found = choices() if callable(choices) else choices
        return [one if isinstance(one, str) else self.text_of(one) for one in found]

    @property
    def metavar(self) -> str:
        """The placeholder of the value in the help."""
        if self.about.metavar or not self.about.choices:
            return self.about.metavar or _LETTERS.get(self.type, "TEXT")
        return f"{{{','.join(self.choices)}}}"

    @property
    def is_switch(self) -> bool:
        return self.type is bool

    @property
    def off(self) -> str:
        """The option that switches it off, or makes it None."""
        return self.flag.replace("--", "--no-", 1)

    def value_of(self, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            argparse.ArgumentTypeError: it stands for none.
        """
        try:
            value = (self.about.parse or _BY_TYPE[self.type])(text)
        except (
            ValueError,
            TypeError,
            ArithmeticError,
            LookupError,
        ) as error:  # a workload's own function may raise any
            why = " ".join(str(error).split())
            raise argparse.ArgumentTypeError(f"{text!r} cannot be read ({type(error).__name__}: {why})") from None
        if self.about.choices is not None and self.text_of(value) not in self.choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(self.choices)}")
        return value

    def text_of(self, value: Any) -> str:
        """A value as the command line has it, one of a list's."""
        text = self.about.text(value)
        return text.removesuffix(".0") if isinstance(value, float) else text


def _number(text: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' * (kind is int)}number") from None


# How a field without ``parse`` reads a text, by its type.
_BY_TYPE: dict[type, Callable[[str], Any]] = {
    str: str,
    int: functools.partial(_number, kind=int),
    float: functools.partial(_number, kind=float),
    Path: nonempty_path,
}
_LETTERS = {int: "N", float: "X", Path: "PATH"}
_known: dict[type, dict[str, DeclaredSetting]] = {}


def settings_in(kind: type) -> dict[str, DeclaredSetting]:
    """The options of a settings class by name, in the order of ``GROUPS``, and in each from the special to the general.

    Raises:
        UsageError: the class is no dataclass, or a field has no default, or a type that no text is read as.
    """
    if kind in _known:
        return _known[kind]
    if "__dataclass_fields__" not in kind.__dict__:
        raise UsageError(
            f"the class {kind.__name__} is no dataclass", fix="write @dataclass(frozen=True, kw_only=True) above it"
        )
    types = get_type_hints(kind)
    found = [_declared(kind, one, types[one.name]) for one in fields(kind) if one.metadata.get(_KEY, {}) is not None]
    own = dict.fromkeys(one.about.group for one in found if one.about.group not in GROUPS)
    first, *others = GROUPS
    order = [first, *own, *others]

    def place(one: DeclaredSetting) -> tuple[int, int]:
        """The group; then the place of the class that declares the field, from the nearest base to the class itself."""
        floors = [floor for floor, base in enumerate(kind.__mro__) if one.name in inspect.get_annotations(base)]
        return order.index(one.about.group), max(floors) or len(kind.__mro__)

    _known[kind] = {one.name: one for one in sorted(found, key=place)}
    return _known[kind]


def _declared(kind: type, one: Field[Any], declared: Any) -> DeclaredSetting:
    default, about = one.default, _about(kind, one)
    # tuple[str, ...] is given value by value, unless a text= says how all of them are written together.
    if is_list := (get_origin(declared) or declared) is tuple and about.text is str:
        declared = (*get_args(declared), str)[0]
    is_union = get_origin(declared) in (Union, UnionType)
    named = [part for part in (get_args(declared) if is_union else (declared,)) if part is not type(None)]
    found = named[0]
    if about.parse is None and (len(named) != 1 or found not in (*_BY_TYPE, bool)):
        raise UsageError(
            f"{kind.__name__}.{one.name}: no text is read as {declared}",
            fix="take str, int, float, bool or a Path, or give option() a parse=function",
        )
    if default is MISSING:
        raise UsageError(f"{kind.__name__}.{one.name} has no default", fix="give it one; None if it may be left out")
    is_optional = default is None or (is_union and type(None) in get_args(declared))
    return DeclaredSetting(one.name, default, about, found, is_optional, is_list)


def not_an_option(**default: Any) -> Any:
    """A field of a settings class that is no option, with its ``default`` or ``default_factory``."""
    field_of: Any = field  # whose signatures take no such mapping
    return field_of(metadata={_KEY: None}, repr=False, compare=False, **default)


def _about(kind: type, one: Field[Any]) -> Option:
    """Return the class's description of a field, merged over those of its bases."""
    said: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        there = base.__dict__.get("__dataclass_fields__", {}).get(one.name)
        if there is not None:
            said |= there.metadata.get(_KEY) or {}
    return Option(**said)


Show = Literal["none", "some", "all"]


def add_options(
    parser: argparse.ArgumentParser, *kinds: type, only: Container[str] | None = None, show: Show = "some"
) -> None:
    """Add the options of settings classes to a parser, in their groups. One that is not given leaves no attribute.

    Args:
        only: the names of those to add; None: all.
        show: which of them the help has: none, some, or also the advanced ones.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for one in (one for kind in kinds for one in settings_in(kind).values()):
        if only is not None and one.name not in only:
            continue
        name = one.about.group
        title = (name, GROUPS.get(name) or None) if show != "none" else ()
        group = groups[name] = groups.get(name) or parser.add_argument_group(*title)
        is_shown = show == "all" or (show == "some" and not one.about.advanced)
        _add(group, one, is_shown=is_shown and not one.about.hidden)


def _add(group: argparse._ArgumentGroup, one: DeclaredSetting, *, is_shown: bool) -> None:
    about = one.about
    text = _help(one) if is_shown else argparse.SUPPRESS
    common: dict[str, Any] = {"dest": one.name, "default": argparse.SUPPRESS, "help": text}
    hidden = common | {"help": argparse.SUPPRESS}
    if one.is_switch:
        # The other one is for what a file says.
        on, off = (hidden, common) if one.default else (common, hidden)
        group.add_argument(one.flag, action="store_const", const=True, **on)
        group.add_argument(one.off, action="store_const", const=False, **off)
        return
    if one.is_optional or one.is_list:
        group.add_argument(one.off, action="store_const", const=() if one.is_list else None, **hidden)
    if one.is_list:
        common["action"] = _Append
    takes: dict[str, Any] = (
        {} if about.bare is None else {"nargs": "?", "action": functools.partial(_Bare, bare=about.bare)}
    )
    group.add_argument(one.flag, type=one.value_of, metavar=one.metavar, **takes, **common)


class _Bare(argparse.Action):
    """Stores a value, or that of the option without one, which argparse would read as it reads a text."""

    def __init__(self, *, bare: Any, **more: Any) -> None:
        super().__init__(**more)
        self.bare = bare

    def __call__(self, _parser: object, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        setattr(namespace, self.dest, self.bare if values is None else values)


class _Append(argparse.Action):
    """Adds a value to those that were given before."""

    def __call__(self, _: Any, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), value))


def _help(one: DeclaredSetting) -> str:
    about = one.about
    shown = about.shows
    if shown == "":
        shown = None if one.default in (None, ()) or one.is_switch else one.text_of(one.default)
    default = f"(default: {shown})" if shown else ""
    return " ".join(filter(None, (about.help, default))).replace("%", "%%")


K = TypeVar("K")


def made_of(kind: type[K], *given: Mapping[str, Any]) -> K:
    """The settings of a class with the values given, the last of which count; others are the class's defaults."""
    known = settings_in(kind)
    values = {name: value for each in given for name, value in each.items() if name in known}
    more = {"given": values} if "given" in kind.__dataclass_fields__ else {}  # type: ignore[attr-defined]  # a dataclass
    return kind(**values, **more)


def as_words(kind: type, given: Mapping[str, Any]) -> list[str]:
    """The values as words of a command line."""
    known = settings_in(kind)
    return [word for name, value in given.items() if name in known for word in _words(known[name], value)]


def _words(one: DeclaredSetting, value: Any) -> list[str]:
    if one.is_list and value:
        return [f"{one.flag}={one.text_of(each)}" for each in value]
    if one.is_switch or value in (None, ()):
        return [one.flag if value else one.off]
    return [one.flag] if value == one.about.bare is not None else [f"{one.flag}={one.text_of(value)}"]


# --- files


def read_file(path: Path) -> dict[str, Any]:
    """The entries of a TOML file by the names of fields, as they stand there.

    Raises:
        UsageError: it cannot be read, or a later runner has written it.
    """
    found: dict[str, Any] = {}
    for key, value in _entries(path):
        name = key.replace("-", "_")
        if name in found:
            raise UsageError(f"--config {path}: {name} is there twice", fix="keep one of them")
        found[name] = value
    check_format(f"--config {path}", found.pop("format", None), _FORMAT)
    return found


def values_in(path: Path, entries: Mapping[str, Any], *kinds: type, is_all: bool = True) -> dict[str, Any]:
    """The values of a file's entries that settings classes have fields for.

    Args:
        is_all: refuse entries that no class has.

    Raises:
        UsageError: a value is wrong, or there is no such field.
    """
    known = {name: one for kind in kinds for name, one in settings_in(kind).items()}
    unknown = next((name for name in entries if name not in known), None)
    if is_all and unknown is not None:
        import difflib

        near = difflib.get_close_matches(unknown, known, n=1)
        raise UsageError(
            f"--config {path}: there is no setting {unknown!r}{f'; did you mean {near[0]}?' if near else ''}",
            fix="see --help-all for all of them",
        )
    return {name: _value(path, known[name], value) for name, value in entries.items() if name in known}


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    for key, value in read_toml(path, "--config").items():
        yield from value.items() if isinstance(value, dict) else [(key, value)]


def read_toml(path: Path, option: str) -> dict[str, Any]:
    """Return the content of a TOML file.

    Args:
        option: the option that names it, for messages.

    Raises:
        UsageError: it cannot be read.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return dict(tomllib.loads(path.read_bytes().decode("utf-8-sig", errors="surrogateescape")))
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}", fix="name a file that all ranks can read") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{option} {path}: {error}", fix='write lines such as epochs = 3 or strategy = "fsdp"'
        ) from None


def _value(path: Path, one: DeclaredSetting, value: Any) -> Any:
    if one.is_list and isinstance(value, list):
        return tuple(_value(path, replace(one, is_list=False), each) for each in value)
    where = f"--config {path}: {one.name} = {json.dumps(value, default=str)}"
    if one.is_list:
        raise UsageError(where, fix='say a list, such as ["one", "two"]')
    if one.is_switch or isinstance(value, bool):
        if one.is_switch and isinstance(value, bool):
            return value
        if value is True and one.about.bare is not None:
            return one.about.bare
        if value is False and one.is_optional:
            return None
        raise UsageError(where, fix="say true or false" if one.is_switch else "it takes a value")
    if not isinstance(value, str | int | float):
        raise UsageError(where, fix="say one number or text")
    try:
        return one.value_of(str(value))
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--config {path}: {one.name}: {error}") from None


def as_toml(settings: Any, leave_out: Container[str] = ()) -> str:
    """The values given as a file that ``--config`` reads, group by group; the defaults are comments in it."""
    lines = [f"format = {_FORMAT}"]
    group = ""
    for one in settings_in(type(settings)).values():
        if one.about.hidden or one.name in leave_out:
            continue
        if one.about.group != group:
            group = one.about.group
            lines += ["", f"# {group}"]
        value = settings.given.get(one.name, one.default)
        mark = "" if one.name in settings.given else "# "
        lines.append(f"{mark}{one.name} = {_toml(one, value)}")
    return "\n".join(lines) + "\n"


def _toml(one: DeclaredSetting, value: Any) -> str:
    if value is None:
        return "false"
    if one.is_list:
        return f"[{', '.join(_toml(replace(one, is_list=False), each) for each in value)}]"
    if value == one.about.bare is not None:
        return "true"
    if isinstance(value, bool) or (isinstance(value, int) and one.about.text is str):
        return json.dumps(value)
    if isinstance(value, float) and one.about.text is str:
        return repr(value)
    return json.dumps(one.text_of(value), ensure_ascii=False).replace("\x7f", "\\u007f")
