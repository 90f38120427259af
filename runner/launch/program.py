"""Run a program in this process as ``python`` would: a script, a folder or zip file, a module, code; or another program."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import linecache
import os
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from typing import Any

from runner.base.errors import UsageError
from runner.launch.target import CODE, EXECUTABLE, MODULE, STANDARD_INPUT, Target, has_main_of_its_own

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def put_program_on_path(target: Target) -> None:
    """Put the folder first on ``sys.path`` in which Python would look first for what the program imports."""
    if target.kind in (CODE, STANDARD_INPUT):
        put_first_on_path("")
    elif target.kind == MODULE:
        put_first_on_path(os.getcwd())
    elif has_main_of_its_own(target.name):
        sys.path[: 0 if _leaves_folders_out() else 1] = [_absolute(target.name)]  # Python adds these also with -P
    else:
        put_first_on_path(os.path.dirname(os.path.realpath(target.name)))


def put_first_on_path(folder: str) -> None:
    """Put a folder first on ``sys.path``, as Python does with the script's or working folder (unless run with ``-P``)."""
    if not _leaves_folders_out():
        sys.path[0] = folder


def _leaves_folders_out() -> bool:
    """Whether Python runs with ``-P``: then the first entry of ``sys.path`` is one of PYTHONPATH, or the standard library."""
    return getattr(sys.flags, "safe_path", False)  # from Python 3.11 on


def run_program(target: Target, arguments: Sequence[str]) -> None:
    """Run it to its end. Its exceptions pass through."""
    name = target.name
    if target.kind == CODE:
        _run_text(target.source, "-c", "<string>", arguments)
    elif target.kind == STANDARD_INPUT:
        _run_text(target.source, "-", "<stdin>", arguments)
    elif target.kind == MODULE:
        _run_module(name, arguments)
    elif target.kind == EXECUTABLE:
        _run_executable(name if os.sep in name else str(target.path), [name, *arguments])
    elif has_main_of_its_own(name):
        _run_found(_main_in(_absolute(name)), name, arguments)
    else:
        _run_script(name, arguments)


def _absolute(path: str) -> str:
    """The path as Python makes it: the source is found also when the program has changed its folder."""
    return os.path.join(os.getcwd(), path)


def _run_script(path: str, arguments: Sequence[str]) -> None:
    file = _absolute(path)
    loader: Any
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", file)
        code = loader.get_code("__main__")
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", file)
        code = loader.source_to_code(loader.get_data(file), file)
    sys.argv = [path, *arguments]
    _run(code, __file__=file, __cached__=None, __loader__=loader)


def _run_text(source: bytes, name: str, file: str, arguments: Sequence[str]) -> None:
    code = compile(source, file, "exec", dont_inherit=True)  # not this file's own __future__ imports
    if name == "-c" and sys.version_info >= (3, 13):  # which shows its lines in tracebacks
        lines = source.decode().splitlines(keepends=True)
        linecache.cache[file] = (len(source), None, lines, file)
    sys.argv = [name, *arguments]
    named: dict[str, Any] = {"__file__": file, "__cached__": None} if name == "-" else {}
    _run(code, __loader__=importlib.machinery.BuiltinImporter, **named)


def _run_module(name: str, arguments: Sequence[str]) -> None:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None:
        raise ImportError(f"no code for module {name}")
    _run_found(spec, spec.origin, arguments)


def _main_in(path: str) -> importlib.machinery.ModuleSpec:
    """The ``__main__`` of a folder or zip file."""
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    if spec is None:
        raise ImportError(f"can't find '__main__' module in {path!r}")
    return spec


def _run_found(spec: importlib.machinery.ModuleSpec, name: str, arguments: Sequence[str]) -> None:
    if spec.loader is None:
        raise ImportError(f"no code for module {spec.name}")
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]  # all loaders of source have it
    sys.argv = [name, *arguments]
    _run(
        code,
        __file__=spec.origin,
        __cached__=spec.cached,
        __package__=spec.parent,
        __spec__=spec,
        __loader__=spec.loader,
    )


def _run(code: types.CodeType, **names: Any) -> None:
    """Run code in a fresh ``__main__``, so that pickling and spawned children find the program's names and not the runner's."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, **names)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing was imported before, and spawned children name classes so
        sys.modules["__mp_main__"] = main
    exec(code, main.__dict__)


def _run_executable(path: str, command: Sequence[str]) -> None:
    try:
        child = subprocess.Popen(command, executable=path)
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be executed: {error.strerror}",
            fix="a script's first line names its interpreter, as in #!/bin/bash, and ends without a carriage return",
        ) from None

    def forward(number: int, _: object) -> None:
        child.send_signal(number)

    for number in _FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)
