"""Python's garbage collector, beside modules that make hundreds of thousands of objects which stay."""

from __future__ import annotations

import gc
import io
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_PLAIN = (ModuleType, FunctionType, str, bytes, int, float, bool, type(None))
_frozen_files: list[weakref.ref[io.IOBase]] = []


@contextmanager
def paused_collector() -> Iterator[None]:
    """No collection in the meantime: they would look through the modules' objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze() -> None:
    """Have later collections skip all objects that there are now.

    Call when modules have been imported, and the program has no objects of its own: a cycle with a frozen object is never
    collected. A collection that looks through torch's takes 0.2 s (torch 2.14), and a job's end needs one or two.
    """
    _frozen_files[:] = [weakref.ref(file) for file in open_files()]
    gc.freeze()


def freeze_before_program() -> None:
    """``freeze()``, unless the program that runs as ``__main__`` has objects already: it may want them closed at its end."""
    if not _program_has_objects():
        freeze()


def open_files() -> list[io.IOBase]:
    """Files that may have something in their buffers."""
    files = [file for reference in _frozen_files if (file := reference()) is not None]
    # (isinstance() reads __class__, about which some objects warn.)
    return files + [thing for thing in gc.get_objects() if issubclass(type(thing), _BUFFERED)]


def _program_has_objects() -> bool:
    """Whether ``__main__`` has more than imports, functions and plain values, or is inside one of its functions."""
    names = vars(sys.modules["__main__"])
    for name, value in names.items():
        is_imported = getattr(value, "__module__", "__main__") != "__main__" and isinstance(value, type)
        if not (name.startswith("__") or is_imported or isinstance(value, _PLAIN)):
            return True
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name != "<module>":
            return True
        frame = frame.f_back
    return False
