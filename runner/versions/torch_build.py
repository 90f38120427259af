"""The installed torch's version, and the maker of the GPUs that it is built for. Read from files: an import takes a second or more."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Major and minor number, then whether it is that release and not a snapshot from before it: (2, 6) <= (2, 6, False) < (2, 6, True).
Release = tuple[int, ...]

UNREADABLE: Release = (1 << 16,)  # above all releases: a build that calls itself "main" is not taken for an old one
# 2.6.0a0+ecf3bae40a.nv25.01 of NVIDIA's containers, 2.15.0.dev20261101 of a night and 2.6.0a0+git1eba9b3 of sources are snapshots.
_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)*\.?(a|b|dev)?")


class TorchBuild(NamedTuple):
    """``version`` is "" without torch; ``maker`` of the GPUs that it computes on: nvidia, amd, intel, or "" for none."""

    version: str = ""
    maker: str = ""


# What torch/version.py sets to a version in a build for that maker's GPUs, and to None in others.
_MAKERS = {"hip": "amd", "cuda": "nvidia", "xpu": "intel"}


def torch_build() -> TorchBuild:
    """The torch that would be imported."""
    spec = find_spec("torch")
    for folder in spec.submodule_search_locations or () if spec else ():
        try:
            text = (Path(folder) / "version.py").read_text()
        except OSError:
            continue
        found = dict(re.findall(r"^(\w+)(?: *:[^=\n]*)? *= *'([^']+)'", text, re.MULTILINE))
        if "__version__" in found:
            maker = next((maker for name, maker in _MAKERS.items() if name in found), "")
            return TorchBuild(found["__version__"], maker)
    return TorchBuild()


def release_of(version: str) -> Release:
    """The release that a version string names: (2, 6, True) for "2.6.0+rocm6.2.4", (2, 6, False) for "2.6.0a0+ecf3bae40a.nv25.01".

    Compare with (2, 6) where a snapshot from before that release will do, and with (2, 6, True) where it will not. A candidate
    (2.6.0rc2) counts as the release.
    """
    found = _RELEASE.match(version)
    return (int(found[1]), int(found[2]), found[3] is None) if found else UNREADABLE
