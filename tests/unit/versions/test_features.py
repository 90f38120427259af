"""Which torch is which release, and what is refused with an older one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.versions.features import FEATURES, lacking, need, number_of, untried
from runner.versions.torch_build import release_of
from tests.launching import clean_environment, fake_torch


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.4.1", (2, 4, True)),
        ("2.4.1+cu121", (2, 4, True)),
        ("2.6.0+rocm6.2.4", (2, 6, True)),
        ("2.6.0rc2", (2, 6, True)),
        ("2.6.0.post300", (2, 6, True)),
        ("2.15", (2, 15, True)),
        ("v2.15.0", (2, 15, True)),
        ("2.6.0+alpha.of.a.site", (2, 6, True)),
        ("2.6.0a0+ecf3bae40a.nv25.01", (2, 6, False)),
        ("2.6.0a0+git1eba9b3", (2, 6, False)),
        ("2.15.0.dev20261101+cu130", (2, 15, False)),
    ],
)
def test_the_release_of_a_version(version: str, release: tuple[int, ...]) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("version", ["main", "", "git-1eba9b3"])
def test_a_version_that_says_nothing_is_refused_nothing(version: str) -> None:
    assert release_of(version) > (1000,)
    need(*FEATURES, "no such feature", version=version)
    assert lacking(version) == []


@pytest.mark.parametrize("key", FEATURES)
def test_below_its_floor_a_feature_is_refused_in_one_line(key: str) -> None:
    feature = FEATURES[key]
    major, minor, *is_final = feature.floor
    number = f"{major}.{minor}"
    assert number_of(feature.floor) == number
    for version in (f"{major}.{minor - 1}.9", f"{number}.0a0+nv25.01")[: 1 + bool(is_final)]:
        with pytest.raises(UsageError) as refused:
            need(key, version=version)
        message = refused.value.message
        assert message == f"{feature.name} needs torch {number} or newer, and this is {version} ({feature.reason})"
        assert "\n" not in message
        assert refused.value.fix.endswith(f"pip install 'torch>={number}'")
        assert refused.value.fix.startswith(feature.instead)
        assert feature in lacking(version)
    for version in (f"{number}.0", f"{number}.0rc1", f"{number}.0a0+nv25.01")[: 3 - bool(is_final)]:
        need(key, version=version)
        assert feature not in lacking(version)


def test_what_was_not_tried_on_gpus_is_allowed_there_and_told() -> None:
    need("fsdp", "pp", version="2.8.0", device="cuda")
    assert untried("fsdp", "pp", "tp", version="2.8.0", device="cuda") == [FEATURES["fsdp"], FEATURES["pp"]]
    assert untried("fsdp", "pp", version="2.8.0", device="cpu") == []
    assert untried("fsdp", "pp", version="2.12.1", device="cuda") == []
    with pytest.raises(UsageError, match=r"--pp needs torch 2\.6 or newer, and this is 2\.5\.1"):
        need("pp", version="2.5.1", device="cuda")


IN_BACKWARD = """
import threading
from runner.guard.hang.stacks import Inside
library, seen, lock = {}, [], threading.Lock()
exec(compile("def backward(wait): wait()", "/site-packages/torch/autograd/graph.py", "exec"), library)
lock.acquire()
threading.Timer(0.2, lambda: (seen.append(Inside().look()), lock.release())).start()
library["backward"](lock.acquire)
from runner.versions.torch_api import RECORDER
print(seen[0] > 0, RECORDER)
"""


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.4.1", "True {}"),
        ("2.9.1", "False {'TORCH_FR_BUFFER_SIZE': '2000'}"),
        ("2.11.0", "False {'TORCH_FR_BUFFER_SIZE': '2000'}"),
        ("2.12.1", "False {}"),
    ],
)
def test_where_collectives_are_not_recorded_a_backward_pass_counts_as_a_call(
    version: str, found: str, tmp_path: Path
) -> None:
    """And they are recorded where torch can."""
    environment = clean_environment(PYTHONPATH=fake_torch(version, tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", IN_BACKWARD], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == found
