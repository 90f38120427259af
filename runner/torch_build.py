"""Which torch is installed, and whose GPUs it is built for: read from its files, as an import takes a second or more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class TorchBuild:
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
