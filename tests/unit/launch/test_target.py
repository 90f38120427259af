from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.launch.target import Target, find_target
from runner.tools.registry import tool_names


def find(name: str, *, form: str = "") -> Target:
    return find_target(name, form=form, tools=tool_names())


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
    assert find("package", form="-m").path == folder / "package" / "__main__.py"
    assert find("package.work").kind == "workload"
    assert find("workloads.mnist").kind == "workload"
    (folder / "no" / "init").mkdir(parents=True)
    (folder / "no" / "init" / "work.py").write_text("def main(run, argv): ...\n")
    assert find("no.init.work").path == folder / "no" / "init" / "work.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("workloads.mnits", "did you mean workloads.mnist"),
        ("mnist", r"unknown target 'mnist' \(did you mean workloads.mnist\?\)"),
        ("explian", "did you mean explain"),
        ("trian.py", r"no script trian.py in .* \(did you mean train.py\?\)"),
        ("no/such/folder/x.py", "no script no/such/folder/x.py"),
        ("workloads.models.convnets", "-m workloads.models.convnets"),
    ],
)
def test_a_wrong_target_is_told_with_near_matches(folder: Path, name: str, message: str) -> None:
    (folder / "train.py").write_text("")
    with pytest.raises(UsageError, match=message):
        find(name)


WORKLOAD = "import torch\n\ndef main(run, argv):\n    pass\n"


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("mywork.py", WORKLOAD, r"^mywork.py defines main\(run, argv\) and never calls it: it is a workload, so say mywork: python -m runner mywork$"),
        ("jobs/deep/mywork.py", WORKLOAD, "so say jobs.deep.mywork: python -m runner jobs.deep.mywork$"),
        ("my.jobs/mywork.py", WORKLOAD, "so say mywork, in its folder: cd .*/my.jobs; python -m runner mywork$"),
        ("seeded.py", "import torch\ntorch.manual_seed(0)\n" + WORKLOAD, "so say seeded: "),
    ],
)  # fmt: skip
def test_a_workload_given_as_a_script_is_refused(folder: Path, path: str, text: str, message: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)
    with pytest.raises(UsageError, match=message):
        find(path)


def test_a_workload_given_as_a_module_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"main\(run, options\) and never calls it.* say workloads.mnist without -m: python -m runner"
    ):
        find("workloads.mnist", form="-m")


@pytest.mark.parametrize(
    "text",
    [
        WORKLOAD + "if __name__ == '__main__':\n    main(None, [])\n",
        "def main(lr, epochs): ...\nif __name__ == '__main__':\n    fire.Fire()\n",
        "@app.command()\ndef main(run, argv): ...\napp()\n",
        "def main(): ...\n",
        "print('trains here')\n",
        "def broken(:\n",  # Python tells
        "text = '\\d'\n",  # a warning, when it is run
    ],
)
def test_a_script_that_does_something_stays_one(folder: Path, text: str) -> None:
    (folder / "train.py").write_text(text)
    assert find("train.py").kind == "script"
    assert find("train", form="-m").kind == "module"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\ntorch.zeros(1)\n", r"has no main\(run, argv\).*; did you mean ddp.py\?"),
        ("def main():\n    ...\nmain()\n", r"has main\(\) and no main\(run, argv\).*; did you mean ddp.py\?"),
    ],
)
def test_a_script_named_without_its_ending_is_no_workload(folder: Path, text: str, message: str) -> None:
    (folder / "ddp.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        find("ddp")


@pytest.mark.parametrize(
    "text",
    [
        "from x import *\n",
        "try:\n    from x import main\nexcept ImportError:\n    main = None\n",
        "@wrapped\ndef main(): ...\n",
        "def main(run, argv=(), *, quick=False): ...\n",
    ],
)
def test_a_main_that_only_the_import_can_tell_of_is_taken(folder: Path, text: str) -> None:
    (folder / "ddp.py").write_text(text)
    assert find("ddp").kind == "workload"


def test_what_is_far_is_not_suggested(folder: Path) -> None:
    for name in ("acc.py", "sigwrap.py", "trail.py", "trains.py", "strain.py"):
        (folder / name).write_text("")
    with pytest.raises(UsageError, match=r"no script train.py in \S+ \(did you mean \w+.py or \w+.py\?\)$") as told:
        find("train.py")
    assert "acc" not in str(told.value)
    with pytest.raises(UsageError, match=r"no script ddp.py in \S+$"):
        find("ddp.py")


def test_a_wrong_module_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no module named package\.work; it is looked for in "):
        find("package.work", form="-m")


def test_a_workload_with_an_error_in_its_text_is_told_with_the_line(folder: Path) -> None:
    (folder / "broken.py").write_text("def main(run, argv):\n    return (\n")
    with pytest.raises(UsageError, match=r"broken.py:2: "):
        find("broken")


def test_the_digest_is_of_the_content(folder: Path) -> None:
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.py").write_text("x = 1\n")
    (folder / "c.py").write_text("x = 2\n")
    assert find("a.py").digest == find("b.py").digest != find("c.py").digest
