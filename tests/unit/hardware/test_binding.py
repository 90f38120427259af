"""Cores of its own for each rank: published tables of three sites, properties, and what the kernel makes of it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import RefusedError, UsageError
from runner.hardware.binding import bind_host, divide, parse_binding, whole_cores
from runner.hardware.core_map import core_map, cores_of, cores_text, node_of
from runner.hardware.resources import Resources


def tree(folder: Path, cores: int, *, packages: int = 1, nodes: int, caches: int, threads: int = 1) -> Path:
    """Write a host's cores as sysfs shows them: made of the sizes that a site publishes, not copied from a host."""

    def parts(count: int) -> list[str]:
        size = cores // count
        ranges = [range(n * size, (n + 1) * size) for n in range(count)]
        return [cores_text(core + t * cores for core in one for t in range(threads)) for one in ranges]

    levels = {"package": parts(packages), "node": parts(nodes), "cache": parts(caches), "core": parts(cores)}
    for number, text in enumerate(levels["node"]):
        write(folder / f"node/node{number}/cpulist", text)
    for core in range(cores * threads):
        (own,) = (text for text in levels["package"] if core in cores_of(text))
        write(folder / f"cpu/cpu{core}/topology/package_cpus_list", own)
        (own,) = (text for text in levels["core"] if core in cores_of(text))
        write(folder / f"cpu/cpu{core}/topology/core_cpus_list", own)
        write(folder / f"cpu/cpu{core}/cache/index0/level", "1")
        write(folder / f"cpu/cpu{core}/cache/index0/shared_cpu_list", own)
        (own,) = (text for text in levels["cache"] if core in cores_of(text))
        write(folder / f"cpu/cpu{core}/cache/index3/level", "3")
        write(folder / f"cpu/cpu{core}/cache/index3/shared_cpu_list", own)
    return folder


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def ranks(
    cores: str, count: int, system: Path, *, alone: bool = True, allowed: str = "", gpus: Sequence[str] = ()
) -> list[Resources]:
    """Ranks of a host that all have these cores, the first with the host's map. Each sees all of its GPUs."""
    first = Resources(
        cores=cores, is_alone=alone, allowed=allowed or cores, gpu_cores=[*gpus], core_map=core_map(system)
    )
    return [first, *[replace(first, core_map={})] * (count - 1)]


def bound(sharers: list[Resources], asked: str = "auto", *, on_gpus: bool = False) -> list[str]:
    return bind_host(asked, "node1", sharers, [*range(len(sharers))] if on_gpus else [None] * len(sharers))


# Frontier and LUMI-G: 64 cores in 4 NUMA nodes and 8 last-level caches. The first core of each cache is reserved, and Slurm gives a
# job the first thread of a core (docs.olcf.ornl.gov/systems/frontier_user_guide.html, docs.lumi-supercomputer.eu/runjobs/
# scheduled-jobs/distribution-binding, read on 2026-11-29).
TRENTO = ",".join(f"{first}-{first + 6}" for first in range(1, 64, 8))
# The cores near GCD 0, 1, … (the same pages).
NEAR_GCDS = ["48-55", "56-63", "16-23", "24-31", "0-7", "8-15", "32-39", "40-47"]


def test_lumi_gives_each_gcd_the_cores_of_its_cache(tmp_path: Path) -> None:
    system = tree(tmp_path, 64, nodes=4, caches=8, threads=2)
    published = "mask_cpu:fe000000000000,fe00000000000000,fe0000,fe000000,fe,fe00,fe00000000,fe0000000000"
    masks = [int(mask, 16) for mask in published.removeprefix("mask_cpu:").split(",")]
    found = bound(ranks(TRENTO, 8, system, gpus=NEAR_GCDS), on_gpus=True)
    assert [sum(1 << core for core in cores_of(text)) for text in found] == masks


def test_frontier_gives_each_rank_the_seven_cores_of_a_cache(tmp_path: Path) -> None:
    # The user guide's example of srun -n8 -c7: ranks 0, 1, … run on hardware threads 1-7, 9-15, …
    system = tree(tmp_path, 64, nodes=4, caches=8, threads=2)
    assert bound(ranks(TRENTO, 8, system)) == TRENTO.split(",")


def test_aurora_gives_each_tile_eight_cores_of_its_socket(tmp_path: Path) -> None:
    # docs.alcf.anl.gov/aurora/running-jobs-aurora, read on 2026-11-29: 2 × 52 cores, of which 0 and 52 are the system's.
    published = "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"
    system = tree(tmp_path, 104, packages=2, nodes=2, caches=2, threads=2)
    found = bound(ranks("1-51,53-103,105-155,157-207", 12, system))
    assert ":".join(cores_text(core for core in cores_of(text) if core < 104) for text in found) == published
    assert {whole_cores(text, core_map(system)) for text in found} == {8}
    assert {len(cores_of(text)) for text in found} == {16}  # with both threads of each core


def test_gpus_that_share_a_node_get_cores_of_the_same_package(tmp_path: Path) -> None:
    system = tree(tmp_path, 64, packages=2, nodes=8, caches=8)
    near = ["24-31", "24-31", "8-15", "8-15", "56-63", "56-63", "40-47", "40-47"]
    found = [cores_of(text) for text in bound(ranks("0-63", 8, system, gpus=near), on_gpus=True)]
    assert [found[n] == cores_of(near[n]) for n in range(0, 8, 2)] == [True] * 4
    assert all(max(cores) < 32 for cores in found[:4])
    assert all(min(cores) >= 32 for cores in found[4:])


def test_what_a_launcher_has_bound_stays(tmp_path: Path) -> None:
    system = tree(tmp_path, 8, nodes=2, caches=2)
    apart = [Resources(cores=cores, allowed="0-7", is_alone=True, core_map=core_map(system)) for cores in ("0", "5-7")]
    assert bound(apart) == ["", ""]
    assert bound(ranks("0-7", 2, system), "none") == ["", ""]
    assert bound(ranks("0-7", 2, system, alone=False)) == ["", ""], "others may compute there"
    assert bound(ranks("0-7", 1, system)) == [""]


def test_ranks_on_one_core_get_what_the_job_may_use(tmp_path: Path) -> None:
    system = tree(tmp_path, 8, nodes=2, caches=2)
    assert bound(ranks("0", 2, system, alone=False, allowed="0-7")) == ["0-3", "4-7"]
    assert bound(ranks("0", 2, system, allowed="0")) == ["", ""], "there are no more"
    third = Resources(cores="4-7", allowed="0-7")
    assert bound([*ranks("0", 2, system, allowed="0-7"), third]) == ["0-1", "2-3", ""]


def test_crowded_ranks_get_cores_that_no_other_has(tmp_path: Path) -> None:
    system = tree(tmp_path, 8, nodes=2, caches=2)
    first, *rest = ranks("0", 4, system, alone=False, allowed="0-7")
    by_turns = [replace(own, cores=str(n % 2)) for n, own in enumerate([first, *rest])]
    assert bound(by_turns) == ["0-1", "2-3", "4-5", "6-7"]
    confined = [replace(own, allowed="0-7" if n % 2 else "0-1,4-5") for n, own in enumerate(by_turns)]
    found = [cores_of(text) for text in bound(confined) if text]
    assert all(not one & other for one, other in itertools.combinations(found, 2))


def test_a_group_is_left_alone_if_a_rank_may_not_use_its_cores(tmp_path: Path) -> None:
    first, second = ranks("0-5", 2, tree(tmp_path, 8, nodes=2, caches=2))
    assert bound([first, replace(second, cores="4-7", allowed="4-7")]) == ["", ""]


def test_a_reserved_core_leaves_the_others_in_their_package(tmp_path: Path) -> None:
    system = tree(tmp_path, 32, packages=2, nodes=2, caches=2)
    assert bound(ranks("0-30", 2, system)) == ["0-14", "16-30"]
    assert bound(ranks("1-31", 4, system)) == ["1-7", "8-14", "16-22", "23-29"]


def test_ranks_whose_gpus_are_in_one_package_divide_its_cores(tmp_path: Path) -> None:
    system = tree(tmp_path, 64, packages=2, nodes=8, caches=8)
    assert bound(ranks("0-63", 2, system, gpus=["40-47", "40-47"]), on_gpus=True) == ["32-47", "48-63"]
    assert bound(ranks("0-63", 2, system, gpus=["40-47", ""]), on_gpus=True) == ["32-63", "0-31"]


def test_whole_cores_come_before_hyperthreads(tmp_path: Path) -> None:
    system = tree(tmp_path, 4, nodes=1, caches=1, threads=2)
    assert bound(ranks("0-7", 4, system)) == ["0,4", "1,5", "2,6", "3,7"]
    assert bound(ranks("0-7", 8, system)) == ["0", "4", "1", "5", "2", "6", "3", "7"]
    assert bound(ranks("0-7", 9, system)) == [""] * 9


@given(st.data())
def test_sets_are_equal_disjoint_and_allowed(data: st.DataObject) -> None:
    nodes, size, threads = (data.draw(st.integers(1, most)) for most in (4, 6, 2))
    cores, first = nodes * size * threads, nodes * size
    levels = {
        "node": [
            cores_text(n * size + c + t * first for c in range(size) for t in range(threads)) for n in range(nodes)
        ],
        "core": [cores_text(core + t * first for t in range(threads)) for core in range(first)],
    }
    allowed = frozenset(data.draw(st.sets(st.sampled_from(range(cores)), min_size=1)))
    count = data.draw(st.integers(1, cores))
    found = divide(allowed, count, levels)
    assert bool(found) == (count <= len(allowed))
    assert all(piece and piece <= allowed for piece in found)
    assert all(not one & other for one, other in itertools.combinations(found, 2))
    whole = {sum(1 for core in levels["core"] if cores_of(core) & piece) for piece in found}
    assert len(whole) <= 1


@pytest.mark.parametrize("text", ["", "all", "1:", "3-1", "0-3,:4", "0-99999", "0-3:4-7:", "-1", "1-2-3"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="neither auto, none nor a list"):
        parse_binding(text)


def test_a_list_that_cannot_be_is_refused(tmp_path: Path) -> None:
    sharers = ranks("0-7", 2, tree(tmp_path, 8, nodes=1, caches=1))
    assert bound(sharers, parse_binding("0-3:4-7:8-9")) == ["0-3", "4-7"]
    with pytest.raises(UsageError, match="names cores for 1 rank, and host node1 has 2"):
        bound(sharers, "0-3")
    with pytest.raises(RefusedError, match="core 3 is named for local ranks 0 and 1"):
        bound(sharers, "0-3:3-7")
    with pytest.raises(RefusedError, match="local rank 1 on host node1 may not use core 8, only 0-7"):
        bound(sharers, "0-3:4-8")


def test_memory_is_preferred_on_the_node_of_the_cores(tmp_path: Path) -> None:
    system = tree(tmp_path, 8, nodes=2, caches=2)
    assert [node_of(cores, system) for cores in ([0, 3], [4], [3, 4])] == [0, 1, None]
    assert node_of([0], tree(tmp_path / "one", 8, nodes=1, caches=1)) is None
    program = (
        "from runner.hardware.binding import prefer_node\nprefer_node(0)\nprint(open('/proc/self/numa_maps').read())"
    )
    text = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "prefer" in text
    assert "bind:" not in text


def test_this_host_is_read() -> None:
    assert os.sched_getaffinity(0) <= {core for text in core_map()["core"] for core in cores_of(text)}
