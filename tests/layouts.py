"""Layouts as cases of tests: one whose features the installed torch lacks is left out (the marker ``needs``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from runner.options.command import given_in
from runner.parallel.mesh import Layout

FSDP = pytest.param("fsdp", marks=pytest.mark.needs("fsdp"))  # a strategy


def case(ranks: int, options: str, *more: Any, also: Sequence[str] = ()) -> Any:
    """The parameters (ranks, options, …) of a test, for pytest. ``also``: features that the options do not show."""
    return pytest.param(ranks, options, *more, marks=needing((ranks, options), also=also))


def each_of(*layouts: tuple[int, str]) -> pytest.MarkDecorator:
    """Run a test, which has the parameters ``ranks`` and ``layout``, in each of these layouts."""
    return pytest.mark.parametrize(("ranks", "layout"), [case(*layout) for layout in layouts])


def needing(*layouts: tuple[int, str], also: Sequence[str] = ()) -> pytest.MarkDecorator:
    """The marker of a test that trains in all of these layouts, each a number of ranks and a workload's options."""
    return pytest.mark.needs(*dict.fromkeys(key for one in layouts for key in _features(*one)), *also)


def _features(ranks: int, text: str) -> list[str]:
    options = given_in(text.split()).parallel()
    order = re.search(r"--order (\S+)", text)  # as tests/programs/layouts/parity.py takes it
    own = tuple(map(int, order[1].split(","))) if order else tuple(range(ranks))
    return [*options.features, *options.features_in(Layout(options.degrees(ranks), own))]
