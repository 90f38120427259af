"""``python -m runner checkpoint``: list, verify, export and remove the checkpoints of a training.

    python -m runner checkpoint ls runs/mnist               step, size, age
    python -m runner checkpoint verify runs/mnist           compare checksums
    python -m runner checkpoint export runs/mnist FILE      the newest's weights
    python -m runner checkpoint prune runs/mnist --keep 1   remove old ones

A checkpoint that several ranks wrote is read by one process here. Exported weights come back with ``--weights FILE``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.quantities import nonempty_path, positive
from runner.job import Job
from runner.options.parsing import Parser
from runner.tools.tables.table import Row, print_rows


def checkpoint(job: Job, argv: list[str]) -> None:
    """Do what the subcommand says, in one process."""
    parser = Parser(prog="python -m runner checkpoint", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="ls|verify|export|prune")
    for name, work, title in (
        ("ls", _list, "list the checkpoints of a folder"),
        ("verify", _verify, "compare every file with its checksum; exit code 1 if one differs"),
        ("export", _export, "write the weights as one safetensors file"),
        ("prune", _prune, "remove all but the newest that are intact, and the best"),
    ):
        command = commands.add_parser(name, help=title, description=title)
        command.add_argument("folder", type=nonempty_path, metavar="DIR", help="a training's folder, or one checkpoint")
        command.set_defaults(work=work)
        if name == "export":
            command.add_argument("file", type=nonempty_path, metavar="FILE", help="file to write")
        if name == "prune":
            command.add_argument(
                "--keep",
                type=positive,
                required=True,
                metavar="N",
                help="keep the newest N that are intact, and damaged ones that are newer",
            )
    given = parser.parse_args(argv)
    if job.rank == 0:
        given.work(given)


def _list(given: argparse.Namespace) -> None:
    from runner.training.checkpoint.checkpoint_folder import best_in, read_manifest

    rows, found = [], _found(given.folder, also_damaged=True)
    best = best_in(found[0].resolve().parent)
    for path in found:
        try:
            saved, sums = read_manifest(path)
        except UsageError as error:
            rows.append(Row(path.name, "fail", error.message))
            continue
        size = sum(size for size, _ in sums.values())
        is_best = "the best, " if path.resolve() == best else ""
        age = (time.time() - path.stat().st_mtime) / 60
        rows.append(
            Row(
                path.name,
                "ok",
                f"{is_best}{saved.workload}, epoch {saved.position.epoch}, {size / 1e6:.1f} MB in {len(sums)} files, {age:.0f} min old",
            )
        )
    print_rows(rows, "checkpoint", f"in {given.folder}")


def _verify(given: argparse.Namespace) -> None:
    rows = []
    for path in _found(given.folder, also_damaged=True):
        try:
            rows.append(Row(path.name, "ok", f"{_checked(path)} files are as they were written"))
        except UsageError as error:
            rows.append(Row(path.name, "fail", error.message))
    print_rows(rows, "checkpoint", f"in {given.folder}")
    sys.exit(any(row.status == "fail" for row in rows))


def _export(given: argparse.Namespace) -> None:
    from runner.training.checkpoint.file_errors import writing
    from runner.training.checkpoint.resume import model_weights
    from runner.training.checkpoint.shards import write_weights

    file: Path = given.file
    if file.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise UsageError(
            f"{file} would be of safetensors' format, which torch.load does not read",
            fix=f"name it {file.stem}.safetensors, and read it by safetensors.torch.load_file",
        )
    weights = model_weights(given.folder)
    with writing(file):
        write_weights(file, weights)
    print(f"{len(weights)} tensors in {file}")


def _prune(given: argparse.Namespace) -> None:
    from runner.training.checkpoint.checkpoint_folder import best_in, remove

    kept, best = 0, best_in(given.folder)
    for path in _found(given.folder):
        if kept < given.keep:
            try:
                _checked(path)
                kept += 1
            except UsageError as error:
                print(f"not counted: {error.message}", file=sys.stderr)
        elif path != best:
            remove(path)
            print(f"removed {path}")


def _checked(path: Path) -> int:
    """The number of a checkpoint's files, all of which are as they were written.

    Raises:
        UsageError: one is not.
    """
    from runner.training.checkpoint.checkpoint_folder import check_files, read_manifest

    _, sums = read_manifest(path)
    check_files(path, sums)
    return len(sums)


def _found(folder: Path, *, also_damaged: bool = False) -> list[Path]:
    """The complete checkpoints of a folder, newest first, or the one that it is.

    Args:
        also_damaged: and those that have lost their ``checkpoint.json``.

    Raises:
        UsageError: there is none.
    """
    from runner.training.checkpoint.checkpoint_folder import MANIFEST, is_named, named_in, steps_in

    # A training's own folder may have a checkpoint's name.
    is_one = (folder / MANIFEST).is_file() or (also_damaged and is_named(folder) and not named_in(folder))
    found = [folder] if is_one else [path for _, path in (named_in if also_damaged else steps_in)(folder)]
    if not found:
        raise UsageError(f"there is no complete checkpoint in {folder}", fix="name the --checkpoint-dir of a training")
    return found
