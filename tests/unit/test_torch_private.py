"""Private names of torch are in one file, runner/versions/torch_private.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from runner.versions import torch_private
from tests import sources
from tests.launching import ROOT
from tests.sources import tree

HOME = ROOT / "runner" / "versions" / "torch_private.py"
FILES = [path for path in [*sources.FILES["runner"], *sources.FILES["workloads"]] if path != HOME]
OF_OTHERS = {"_asdict", "_fields", "_replace"}  # namedtuple's
# A method of Horovod's server, NumPy's global generator, and what newer Pythons' multiprocessing has.
OF_OTHERS |= {"_put_value", "_rand", "_get_base_temp_dir"}
STANDARD = {"argparse", "atexit", "os", "sys", "threading"}
IN_TEXT = re.compile(r"\btorch(\.\w+)*\._\w+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def docstrings(within: ast.AST) -> set[ast.AST]:
    found = (node.body[0] for node in ast.walk(within) if isinstance(getattr(node, "body", None), list) and node.body)
    return {one.value for one in found if isinstance(one, ast.Expr)}


def defined(within: ast.AST) -> Iterator[str]:
    """The names that a file gives to something, also to attributes."""
    for node in ast.walk(within):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def private_names(within: ast.AST, own: set[str]) -> Iterator[str]:
    """Those that a file has of others: in imports, as attributes, as texts.

    Args:
        own: names that are defined here.
    """
    texts = docstrings(within)
    pieces = {part for node in ast.walk(within) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(within):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [f"{module}{alias.name}" for alias in node.names]
            yield from (name for name in names if name.startswith("torch.") and "._" in name)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            holder = ast.unparse(node.value)
            if holder not in STANDARD and not (holder in ("self", "cls", "super()") and node.attr in own):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in texts:
            yield from (found[0] for found in IN_TEXT.finditer(node.value))
            if re.fullmatch(r"_[a-z]\w+", node.value) and node.value not in own and node not in pieces:
                yield node.value


OWN = {name for path in FILES for name in defined(tree(path))}


@pytest.mark.parametrize(
    "text",
    [
        "from torch.distributed import _functional_collectives",
        "self._unheard_of()",
        "getattr(model, '_compiled_call_impl')",
        "SOURCE = 'import sys; from torch._C import TCPStore'",
    ],
)
def test_a_private_name_is_seen(text: str) -> None:
    assert list(private_names(ast.parse(text), {"_own"}))


def test_private_names_of_torch_are_in_one_file() -> None:
    found = {path: {*private_names(tree(path), OWN)} - OF_OTHERS - {*torch_private.REPLACED} for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("name", torch_private._HOMES)
def test_each_name_is_where_it_is_looked_for(name: str) -> None:
    assert getattr(torch_private, name).__name__ == name


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        torch_private.NoSuchName  # noqa: B018  # reading it is the test
