"""What a host's processors tell: energy counters that begin again, those that are parts of others, none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.hardware.meters import Meters


def counter(root: Path, name: str, microjoules: int, whole: int = 1000) -> Path:
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "energy_uj").write_text(str(microjoules))
    (folder / "max_energy_range_uj").write_text(str(whole))
    return folder


def test_energy_is_that_of_all_packages_also_where_a_counter_has_begun_again(tmp_path: Path) -> None:
    for name, start in (("intel-rapl:0", 900), ("intel-rapl:1", 5), ("intel-rapl:0:0", 1)):
        counter(tmp_path, name, start)
    meters = Meters("cpu", is_first_on_host=True, root=tmp_path)
    meters.begin()
    for name, end in (("intel-rapl:0", 99), ("intel-rapl:1", 25), ("intel-rapl:0:0", 999)):
        counter(tmp_path, name, end)
    assert meters.joules() == pytest.approx(220e-6)


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    counter(tmp_path, "intel-rapl:0", 1)
    for meters in (
        Meters("cpu", is_first_on_host=False, root=tmp_path),
        Meters("cpu", is_first_on_host=True, root=tmp_path / "none"),
    ):
        meters.begin()
        assert meters.joules() is None
        assert meters.busy() is None


def test_a_clock_that_has_sunk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    megahertz = iter([2000.0, 1500.0])
    monkeypatch.setattr("psutil.cpu_freq", lambda: SimpleNamespace(current=next(megahertz)))
    meters = Meters("cpu", is_first_on_host=True)
    meters.begin()
    assert meters.clock_kept() == 0.75
