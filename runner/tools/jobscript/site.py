"""Profiles of sites: what a job script needs there, from the site's documentation, as one TOML file each.

Other packages add sites by an entry point ``runner.sites``, which names the path of such a file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

from runner.base.errors import UsageError
from runner.base.extensions import extensions, load_extension
from runner.base.settings import read_toml
from runner.hardware.devices import DEVICES
from runner.launch.commands import PALS
from runner.tools.jobscript.request import SCHEDULERS

_OWN = Path(__file__).with_name("sites")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site's defaults for the options of jobscript, and what its scripts add.

    Attributes:
        title: the machine.
        page: the page of its documentation that says so, and the date on which it was read.
        queue, gpus_per_node, gpu_type, cores_per_rank, mpi, scheduler: defaults of these options.
        device: of ranks that have GPUs.
        modules, directives: are loaded, or added, before those that are given.
        launch: options of srun or mpiexec.
        whole_nodes: ``launch`` fits only jobs that have whole nodes with a rank per GPU.
        variables: are set, unless the user has set them.
        note: what a user there should know.
    """

    name: str
    title: str
    page: str
    read: date
    scheduler: str
    mpi: str | None = None
    queue: str | None = None
    device: str = "cuda"
    gpus_per_node: int = 0
    gpu_type: str = ""
    cores_per_rank: int = 4
    modules: Sequence[str] = ()
    directives: Sequence[str] = ()
    launch: Sequence[str] = ()
    whole_nodes: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of jobscript's options that are not given."""
        found = {
            "scheduler": self.scheduler,
            "mpi": self.mpi,
            "queue": self.queue,
            "cores_per_rank": self.cores_per_rank,
        }
        return found | {"gpus_per_node": (self.gpu_type, self.gpus_per_node)}


def site_names() -> list[str]:
    """The names of all sites, those of other packages last."""
    return [*sorted(path.stem for path in _OWN.glob("*.toml")), *(point.name for point in extensions("runner.sites"))]


def load_site(name: str) -> Site:
    """Return a site's profile.

    Raises:
        UsageError: there is none of this name, or its file is wrong.
    """
    others = {point.name: point for point in extensions("runner.sites")}
    if name in others:
        return read_site(name, load_extension(others[name], "site", Path, Path))
    if name not in site_names():
        near = difflib.get_close_matches(name, site_names(), n=1)
        raise UsageError(
            f"--site {name}: there is no such profile", fix=f"take {near[0] if near else ', '.join(site_names())}"
        )
    return read_site(name, _OWN / f"{name}.toml")


def read_site(name: str, file: Path) -> Site:
    """Read a profile.

    Raises:
        UsageError: it cannot be read, has an unknown key, lacks one, or has a value that cannot be.
    """
    entries = read_toml(file, f"--site {name}")
    known = {each.name: each for each in fields(Site) if each.name != "name"}
    for key, value in entries.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise UsageError(
                f"--site {name}: {file} has an unknown key {key!r}", fix=f"take {near[0] if near else 'it out'}"
            )
        kind = {"Sequence[str]": list, "Mapping[str, str]": dict, "int": int, "bool": bool, "date": date}.get(
            str(known[key].type), str
        )
        texts = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ()
        if type(value) is not kind or not all(isinstance(text, str) for text in texts):
            raise UsageError(f"--site {name}: {file}: {key} = {value!r} is no {kind.__name__}", fix="correct the file")
        if not all(text.isprintable() for text in (*texts, value) if isinstance(text, str)):
            raise UsageError(f"--site {name}: {file}: {key} has a text of several lines", fix="write one line")
    try:
        site = Site(name=name, **entries)
    except TypeError as error:
        raise UsageError(f"--site {name}: {file} is not complete: {error}", fix="add what is missing") from None
    if wrong := _wrong_in(site):
        raise UsageError(f"--site {name}: {file}: {wrong}", fix="correct the file")
    return site


def _wrong_in(site: Site) -> str:
    """Say which value of a profile cannot be; "" if all can."""
    words = [site.queue or "", site.gpu_type, *site.modules]
    if site.scheduler not in SCHEDULERS:
        return f"scheduler = {site.scheduler!r} is none of {', '.join(SCHEDULERS)}"
    starters = SCHEDULERS[site.scheduler].starters
    if site.mpi not in (None, *starters):
        return f"mpi = {site.mpi!r} is none of {', '.join(starters)}"
    if site.launch and (site.mpi or starters[0]) not in ("srun", PALS):
        return f"launch is for srun and PALS' mpiexec, and not for {site.mpi or starters[0]}"
    if site.cores_per_rank < 1 or site.gpus_per_node < 0:
        return f"cores_per_rank = {site.cores_per_rank} and gpus_per_node = {site.gpus_per_node} are too small"
    if site.device not in DEVICES:
        return f"device = {site.device!r} is none of {', '.join(DEVICES)}"
    if unfit := [word for word in words if len(word.split()) > 1]:
        return f"{unfit[0]!r} is not one word"
    if unfit := [name for name in site.variables if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)]:
        return f"{unfit[0]!r} is no variable's name"
    return ""
