"""Print what a program can know of how Python runs it, to compare with another way to run it. It changes its folder."""

import atexit
import dataclasses
import inspect
import json
import multiprocessing
import os
import sys
import tempfile
import traceback


@dataclasses.dataclass
class Own:
    """Pickled by its name, which a spawned process must find in ``__main__``."""

    number: int


def fails() -> None:
    raise ValueError("boom")


def in_child(own: Own) -> list[object]:
    return [own.number + 1, sys.flags.utf8_mode, sys.warnoptions, sorted(sys._xoptions), type(own) is Own]


def source_of(function: object) -> str:
    try:
        return inspect.getsource(function)
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    names = {
        name: str(value)
        for name, value in globals().copy().items()
        if name.startswith("__") and name not in ("__loader__", "__doc__", "__builtins__", "__spec__")
    }
    found = {
        "names": names,
        "spec": getattr(__spec__, "name", None),
        "loader": type(globals()["__loader__"]).__name__,
        "builtins": type(globals()["__builtins__"]).__name__,
        "argv": sys.argv,
        "path0": sys.path[0],
        "is_main": sys.modules["__main__"].__dict__ is globals(),
        "code": fails.__code__.co_filename,
        "streams": [[stream.encoding, stream.errors] for stream in (sys.stdout, sys.stderr)],
        "flags": [sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions, sorted(sys._xoptions)],
    }
    os.chdir(tempfile.gettempdir())
    found["source"] = source_of(fails)
    try:
        fails()
    except ValueError:
        found["traceback"] = traceback.format_exc()
    if sys.argv[1:2] == ["spawn"]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found["child"] = pool.apply(in_child, (Own(41),))
    print(json.dumps(found), flush=True)
    atexit.register(print, "at exit", flush=True)
    sys.exit("a reason" if "reason" in sys.argv else 0)
