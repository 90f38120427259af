"""torch, imported once for the ranks of a host, before they are forked; a program has it when it imports it.

A program that found torch in ``sys.modules`` before its own import would lose what it sets for that import, such as OMP_NUM_THREADS.
So what is imported is taken out of ``sys.modules``, but for Python's own modules, and a finder puts a package back when it is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob
from types import ModuleType
from typing import Any

from runner.base.collector import freeze, paused_collector
from runner.base.environment import set_missing, set_variables, unset_variables
from runner.guard.process.identity import is_read_by_torch
from runner.torchrun.import_hooks import call_for_imported
from runner.versions import torch_private

# What any program may have in sys.modules before it imports anything: Python's own, and this package.
_STANDARD = {*sys.stdlib_module_names, "runner", "__mp_main__", "__main__"}
_seeds: list[Callable[[], Any]] = []  # they give torch and numpy, as they were imported, other random numbers
# What numpy and torch read of these is set later, too.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def import_once(modules: Iterable[str], preloaded: Sequence[str] = ()) -> str:
    """Import modules for processes that are forked of this one.

    Args:
        preloaded: modules that users name.

    Returns:
        Why they must not be forked of it, in a few words; "" if they may.
    """
    environment, known, read = dict(os.environ), set(sys.modules), set[str]()
    before = {name: os.environ.get(name) for name in _THREADS}
    set_variables(dict.fromkeys(_THREADS, "1"))  # a pool of threads would not live in a forked process
    try:
        with paused_collector():
            # (A module that is not there may not be needed. If it is, the program itself raises the error.)
            failed = _imported(modules, "the import of", but_for=ModuleNotFoundError)
            first = _new_packages(known)
            if not failed and preloaded:
                before_them = _generators()
                with _noting_reads() as read:
                    failed = _imported(preloaded, "--preload")
                if made := ", ".join(sorted({kind for one, kind in _generators().items() if one not in before_them})):
                    _say(
                        f"--preload {' '.join(preloaded)} has made random generators ({made}), which give all ranks of a host "
                        "the same numbers; make or seed them in the program, or import it without --preload"
                    )
    finally:
        unset_variables(name for name, value in before.items() if value is None)
        set_variables({name: value for name, value in before.items() if value is not None})
    if failed or (failed := _not_to_be_forked()):
        return failed
    freeze()
    if (torch := sys.modules.get("torch")) is not None:
        _seeds.append(torch.default_generator.seed)
    if (of_numpy := sys.modules.get("numpy.random")) is not None:
        _seeds.append(of_numpy.seed)
    later = _new_packages(known) - first
    packages = {top: _taken_out(top) for top in first | later}
    sys.meta_path.insert(0, _HeldFinder(packages, environment, later, read))
    return ""


def _new_packages(known: set[str]) -> set[str]:
    """The packages and modules that have been imported since, but for Python's own, and those of extensions."""
    tops = {name.partition(".")[0] for name in sys.modules.keys() - known} - _STANDARD
    return {
        top for top in tops if not top.startswith("_") and getattr(sys.modules.get(top), "__spec__", None) is not None
    }


def is_held(name: str) -> bool:
    """Whether a package is imported in the moment in which the program imports it."""
    return any(isinstance(finder, _HeldFinder) and name in finder.packages for finder in sys.meta_path)


def draw_own_numbers() -> None:
    """Give this process random numbers of its own, right after its fork: torch and numpy seed them when they are imported.

    Later would be too late: a program may have set a seed by then.
    """
    for seed in _seeds:
        seed()


def _imported(modules: Iterable[str], by: str, but_for: type[BaseException] | tuple[()] = ()) -> str:
    """Import modules. Returns what has failed, but for one kind of errors; "" if nothing has."""
    for module in modules:
        try:
            importlib.import_module(module)
        except but_for:
            continue
        except BaseException as error:
            return f"{by} {module} has failed: {type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _noting_reads() -> Iterator[set[str]]:
    """The names of the variables that are read in the block."""
    kind, read = type(os.environ), set[str]()
    get = kind.__getitem__

    def noting(environment: Any, name: Any) -> Any:
        read.add(name)
        return get(environment, name)

    kind.__getitem__ = noting  # type: ignore[method-assign]  # for the block only, in a process with one thread
    try:
        yield read
    finally:
        kind.__getitem__ = get  # type: ignore[method-assign]  # as it was


def _generators() -> dict[int, str]:
    """The kinds of the random generators of Python and NumPy that there are. (torch.Generator() has the same seed in each process.)"""
    kinds, known = [random.Random], []
    if (of_numpy := sys.modules.get("numpy.random")) is not None:
        kinds += [of_numpy.Generator, of_numpy.RandomState]
        known = [of_numpy.mtrand._rand]  # draw_own_numbers() seeds it
    found = [one for one in gc.get_objects() if issubclass(type(one), tuple(kinds)) and one not in known]
    return {id(one): type(one).__name__ for one in found if not isinstance(one, random.SystemRandom)}


def _say(text: str) -> None:
    print(f"runner: {text}", file=sys.stderr, flush=True)


def _not_to_be_forked() -> str:
    """Why a process with what was imported cannot be forked, in a few words."""
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        return f"what is imported has started {threads - 1} threads"
    files = map(os.path.realpath, glob("/proc/self/fd/*"))
    return "what is imported uses CUDA" if any(file.startswith("/dev/nvidia") for file in files) else ""


def _taken_out(top: str) -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == top}


class _HeldFinder(importlib.abc.MetaPathFinder):
    """Finds packages that are held."""

    def __init__(
        self, packages: dict[str, dict[str, ModuleType]], before: dict[str, str], preloaded: set[str], read: set[str]
    ) -> None:
        """
        Args:
            before: the variables before the import; some are set by what was imported.
            preloaded: packages that were imported after torch, and may use it.
            read: variables that these have read.
        """
        self.packages, self._before, self.preloaded, self.read = packages, before, preloaded, read
        self.added = {name: value for name, value in os.environ.items() if name not in before}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.packages:
            return None
        own = self.packages[name][name].__spec__
        assert own is not None
        beside = importlib.machinery.PathFinder.find_spec(name)
        if beside is not None and beside.origin != own.origin:  # the program has one of its own, first on its path
            return None
        spec = importlib.machinery.ModuleSpec(name, _HeldLoader(self, own), origin=own.origin, is_package=True)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        return spec

    def changed(self) -> set[str]:
        """Variables that have another value since, and not by what was imported."""
        now = os.environ
        return {
            name
            for name in {*now, *self._before} - {*_THREADS}
            if now.get(name) not in (self._before.get(name), self.added.get(name, self._before.get(name)))
        }


class _HeldLoader(importlib.abc.Loader):
    """Puts a package back. Not in ``find_spec``: the import system would take the module's own spec then, and execute it again."""

    def __init__(self, finder: _HeldFinder, own: importlib.machinery.ModuleSpec) -> None:
        self._finder, self._own = finder, own
        self._modules: dict[str, ModuleType] = {}

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        self._modules = self._finder.packages.pop(spec.name)
        sys.modules.update(self._modules)
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self._finder.preloaded:
            for name in _AFTER.keys() & self._finder.packages.keys():  # which it uses, and has imported
                importlib.import_module(name)
            lost = self._finder.read & self._finder.changed()
            self._finder.read -= lost
            if lost and os.environ.get("RANK", "0") == "0":
                names = f"{', '.join(sorted(lost))}: read by --preload before {'it was' if len(lost) == 1 else 'they were'} set for"
                _say(f"{names} this rank, and so without effect there; import {module.__name__} without --preload")
        module.__spec__, module.__loader__ = self._own, self._own.loader
        if (after := _AFTER.get(module.__name__)) is not None:
            after(module)
        if not self._finder.packages and self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if module.__name__ == "torch":
            self._apply_late()
            set_missing(self._finder.added)
            call_for_imported(self._modules.keys() - {"torch"})  # its own loader calls for itself

    def _apply_late(self) -> None:
        late = sorted(name for name in self._finder.changed() if is_read_by_torch(name))
        for name in _APPLIED.keys() & set(late):
            _APPLIED[name]()
        if (lost := [name for name in late if name not in _APPLIED]) and os.environ.get("RANK", "0") == "0":
            text = f"{', '.join(lost)}: set after the import of torch that the ranks of a host share, and so without effect"
            _say(f"{text}; start with --share-import off")


# What torch reads while it is imported, and can read again.
_APPLIED = {"TORCH_LOGS": torch_private.read_log_settings, "TORCH_DISTRIBUTED_DEBUG": torch_private.read_debug_level}
APPLIED = (*_THREADS, *_APPLIED)


def _set_torch(module: ModuleType) -> None:
    module.set_num_threads(_threads(("MKL_NUM_THREADS", "OMP_NUM_THREADS")))


def _set_numpy(_: ModuleType) -> None:
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").split(maxsplit=5)[5] for line in maps if "openblas" in line}
        for path in paths:
            library = ctypes.CDLL(path)
            for name in (
                "scipy_openblas_set_num_threads64_",
                "openblas_set_num_threads64_",
                "openblas_set_num_threads",
            ):
                if (function := getattr(library, name, None)) is not None:
                    function(_threads(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")))
                    break


def _threads(names: Sequence[str]) -> int:
    """Return the number of threads by the first of these variables, as OpenMP reads it; else the cores of this process."""
    for name in names:
        text = os.environ.get(name, "").partition(",")[0].strip()
        if text.isdecimal() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


_AFTER: dict[str, Callable[[ModuleType], None]] = {"torch": _set_torch, "numpy": _set_numpy}
