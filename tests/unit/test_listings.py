"""What a page shows is compared with what is printed, numbers aside; the README is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launching import ROOT
from tests.listings import Command, File, listings

PAGE = """\
```console
$ run --epochs 3 \\
    --resume
epoch 3/3  loss 1e-05 on laptop
$ refuse
runner: no …
```

```{code-block} python
:caption: train.py

print("here")
```

```bash
sbatch job.sh
```
"""


def test_the_listings_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    run, refuse, file = listings(page)
    assert isinstance(run, Command)
    assert isinstance(refuse, Command)
    assert run.line.split() == ["run", "--epochs", "3", "--resume"]
    assert (run.is_refused, refuse.is_refused) == (False, True)
    assert file == File("train.py", 'print("here")\n')


@pytest.mark.parametrize(
    ("printed", "is_shown"),
    [
        ("epoch 3/3  loss 1e-05 on laptop", True),
        ("epoch 12/15   loss 0.25 on node-1.cluster", True),
        ("epoch 3/3  loss nan on laptop", False),
        ("epoch 3/3  test 1e-05 on laptop", False),
        ("rank 0: epoch 3/3  loss 1e-05 on laptop", False),
    ],
)
def test_a_line_may_have_other_numbers(printed: str, is_shown: bool) -> None:
    shown = Command("run", ["epoch 3/3  loss 1e-05 on laptop"])
    assert (shown.missing(f"a line\n{printed}\nanother") == []) == is_shown


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", text)
    assert links
    for path, anchor in links:
        assert (ROOT / path).exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, anchor


def test_what_is_printed_is_written_anew() -> None:
    shown = Command("run", ["rank  1  laptop    0  cpu", "rank  0  laptop    9  cpu", '{"loss": 0.03…, "lr": 0.1, …}'])
    output = 'rank  0  node7  1234  cpu\n{"loss": 0.0478, "lr": 0.25, "epoch": 3}\nrank  1  node7    77  cpu'
    assert shown.printed_anew(output) == [
        "rank  1  laptop   77  cpu",
        "rank  0  laptop  1234  cpu",
        '{"loss": 0.04…, "lr": 0.25, …}',
    ]
