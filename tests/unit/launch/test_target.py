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


WORKLOAD = "import torch\n\ndef main(run, argv):\n    pass\n"
UNCALLED = r"defines main\(run, argv\) and never calls it: it is a workload, so say"


@pytest.mark.parametrize(
    ("path", "text", "words", "message"),
    [
        ("train.py", "", "workloads.mnits", "did you mean workloads.mnist"),
        ("train.py", "", "mnist", r"unknown target 'mnist' \(did you mean workloads.mnist\?\)"),
        ("train.py", "", "explian", "did you mean explain"),
        ("train.py", "", "trian.py", r"no script trian.py in .* \(did you mean train.py\?\)"),
        ("train.py", "", "no/such/folder/x.py", "no script no/such/folder/x.py"),
        ("train.py", "", "workloads.models.convnets", "-m workloads.models.convnets"),
        ("train.py", "", "-m package.work", r"no module named package\.work; it is looked for in "),
        ("w.py", WORKLOAD, "w.py", rf"^w.py {UNCALLED} w: python -m runner w$"),
        ("a/b/w.py", WORKLOAD, "a/b/w.py", "so say a.b.w: python -m runner a.b.w$"),
        ("a.b/w.py", WORKLOAD, "a.b/w.py", "so say w, in its folder: cd .*/a.b; python -m runner w$"),
        ("w.py", f"import torch\ntorch.manual_seed(0)\n{WORKLOAD}", "w.py", "so say w: "),
        ("w.py", "", "-m workloads.mnist", r"main\(run, options\) and never calls it.* say workloads.mnist without -m"),
        ("ddp.py", "import torch\ntorch.zeros(1)\n", "ddp", r"has no main\(run, argv\).*; did you mean ddp.py\?"),
        (
            "ddp.py",
            "def main(): ...\nmain()\n",
            "ddp",
            r"has main\(\) and no main\(run, argv\).*; did you mean ddp.py\?",
        ),
        ("w.py", "def main(run, argv):\n    return (\n", "w", "w.py:2: "),
    ],
)
def test_a_wrong_target_is_told(folder: Path, path: str, text: str, words: str, message: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)
    *form, name = words.split()
    with pytest.raises(UsageError, match=message):
        find(name, form="".join(form))


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


def test_the_digest_is_of_the_content(folder: Path) -> None:
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.py").write_text("x = 1\n")
    (folder / "c.py").write_text("x = 2\n")
    assert find("a.py").digest == find("b.py").digest != find("c.py").digest
