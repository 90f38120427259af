from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.target import Target, find_target
from runner.tools import tool_names


def find(name: str, *, as_module: bool = False) -> Target:
    return find_target(name, as_module=as_module, tools=tool_names())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_kinds(folder: Path) -> None:
    (folder / "train.py").write_text("")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "package" / "__main__.py").write_text("")
    (folder / "package" / "work.py").write_text("def main(run, argv): ...\n")
    assert find("explain").kind == "tool"
    assert find("train.py").kind == "script"
    assert find("package", as_module=True).path == folder / "package" / "__main__.py"
    assert find("package.work").kind == "workload"
    assert find("workloads.mnist").kind == "workload"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("workloads.mnits", "did you mean workloads.mnist"),
        ("explian", "did you mean explain"),
        ("trian.py", r"no script trian.py in .* \(did you mean train.py\?\)"),
        ("no/such/folder/x.py", "no script no/such/folder/x.py"),
        ("workloads.models.convnets", r"has no main\(run, argv\).*-m workloads.models.convnets"),
    ],
)
def test_a_wrong_target_is_told_with_near_matches(folder: Path, name: str, message: str) -> None:
    (folder / "train.py").write_text("")
    with pytest.raises(UsageError, match=message):
        find(name)


def test_a_method_called_main_makes_no_workload(folder: Path) -> None:
    (folder / "method.py").write_text("class A:\n    def main(self): ...\n")
    (folder / "branch.py").write_text("try:\n    from x import main\nexcept ImportError:\n    main = None\n")
    with pytest.raises(UsageError, match="has no main"):
        find("method")
    assert find("branch").kind == "workload"


def test_a_wrong_module_is_told(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no module named package\.work"):
        find("package.work", as_module=True)


def test_a_workload_with_an_error_in_its_text_is_told_with_the_line(folder: Path) -> None:
    (folder / "broken.py").write_text("def main(run, argv):\n    return (\n")
    with pytest.raises(UsageError, match=r"broken.py:2: "):
        find("broken")


def test_the_digest_is_of_the_content(folder: Path) -> None:
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.py").write_text("x = 1\n")
    (folder / "c.py").write_text("x = 2\n")
    assert find("a.py").digest == find("b.py").digest != find("c.py").digest
