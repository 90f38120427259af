"""Packages that are missing or do not load: said in one line, with the command that installs what fits the torch that is there."""

from __future__ import annotations

import importlib
import re
import traceback
from importlib.util import find_spec

from runner.base.errors import UsageError
from runner.versions.torch_build import torch_build

# What every workload needs at some time, as for its checkpoints.
OF_WORKLOADS = ("torch", "numpy", "safetensors", "filelock")
_OWN = ("psutil", "rich", "jinja2", "mpi4py", *OF_WORKLOADS)  # what the runner's own modules import where they use it

# torchvision is released with torch: 0.21.0 with 2.6.0, 0.24.1 with 2.9.1, 0.29.0 with 2.14.0. Up to 0.29.0 it wants that one torch; from
# 0.29.1 on it takes 2.14.0 and newer, and there was none of its own for 2.15.
_AHEAD = 15  # its minor version is
_RELEASED_TOGETHER = range(4, 15)
_LATER = {15: "0.29.2"}


def require(*packages: str, needed_by: str = "") -> None:
    """Look, without an import, whether packages are installed.

    Raises:
        UsageError: some are not.
    """
    if missing := [package for package in packages if find_spec(package) is None]:
        raise _not_installed(missing, needed_by)


def problem_of(package: str, needed_by: str) -> UsageError | None:
    """Import a package. Returns why it cannot be used, if so."""
    try:
        importlib.import_module(package)
    except Exception as error:  # also an operator, a symbol or a library that this torch does not have
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            return _not_installed([package], needed_by)
        return _does_not_load(package, needed_by, error)
    return None


def missing_here(error: BaseException) -> UsageError | None:
    """Return a one-line error if one of the runner's own imports has found no such package; else None."""
    if isinstance(error, ModuleNotFoundError) and error.name in _OWN:
        *_, (importer, _) = traceback.walk_tb(error.__traceback__)
        if importer.f_globals["__name__"].startswith(("runner.", "workloads.")):
            return _not_installed([error.name], "")
    return None


def torchvision_for(torch: str) -> str:
    """The version of torchvision that fits this version of torch, and leaves it alone; "" if none is known."""
    if (release := re.fullmatch(r"2\.(\d+)\.(\d+)(\+.*)?", torch)) is None:  # as of a pre-release
        return ""
    minor, patch = int(release[1]), release[2]
    return f"0.{minor + _AHEAD}.{patch}" if minor in _RELEASED_TOGETHER else _LATER.get(minor, "")


def _not_installed(packages: list[str], needed_by: str) -> UsageError:
    names = " and ".join(packages)
    be = "is" if len(packages) == 1 else "are"
    text = f"{needed_by} needs {names}, which {be}" if needed_by else f"{names} {be}"
    return UsageError(f"{text} not installed", fix=_command(*packages))


def _does_not_load(package: str, needed_by: str, error: Exception) -> UsageError:
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    beside = f"{package} {version_of(package)} does not load beside torch {torch_build().version}"
    return UsageError(f"{needed_by} needs {package}, and {beside} ({what})", fix=_command(package))


def _command(*packages: str) -> str:
    words = ["pip", "install"]
    for package in packages:
        fitting = torchvision_for(torch_build().version) if package == "torchvision" else ""
        if fitting and fitting == version_of(package).partition("+")[0]:  # it is there, and broken
            words += ["--force-reinstall", "--no-deps"]
        words.append(f"{package}=={fitting}" if fitting else package)
    if "torchvision" in packages and "+" in version_of("torch"):
        words[-1] += f", with the --index-url that torch {version_of('torch')} is from"
    return " ".join(words)


def version_of(package: str) -> str:
    """Return a package's installed version (without the local part that torch itself shows); "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
