"""``--stage``: the ranks of a host find copies on its own disk in place of folders of a shared file system."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.base.quantities import duration_text, size_text
from runner.staging.mounts import show_copies
from runner.staging.store import Held, clear, find_sent, hold, job_of, source_of, store_folder
from runner.staging.tree import Copy, entries_of, pieces_of


class StagedCopies:
    """The copies that a host's ranks use, in the process of which they are forked.

    Attributes:
        said: lines about what was done.
    """

    def __init__(self, paths: Sequence[Path], to: Path | None, environment: Mapping[str, str]) -> None:
        """Find each copy, or make it by reading the source; then show it at the source's path.

        Raises:
            UsageError: a path cannot be staged.
        """
        folder, job = store_folder(to, environment), job_of(environment)
        self.said: list[str] = []
        self._held = [self._hold(folder, source, job) for source in dict.fromkeys(map(source_of, paths))]
        clear(folder, job=job)
        self._show()

    def _hold(self, folder: Path, source: Path, job: str) -> Held:
        began = time.monotonic()
        if (found := find_sent(folder, source, job=job)) is not None:
            held, age = found
            how = f"as `stage` sent it {duration_text(age)} ago; stage it again after a change"
        else:
            entries = entries_of(source)

            def fill(copy: Copy, missing: Sequence[int]) -> None:
                for piece in pieces_of(source, entries, missing):
                    copy.write(piece)

            held = hold(folder, source, entries, fill, job=job)
            size = size_text(sum(entry.size for entry in entries), 1024)
            done = "copied" if held.is_new else "compared"
            how = f"{size} in {len(entries)} entries, {done} in {time.monotonic() - began:.1f} s"
        self.said.append(f"{source} is read from {held.copy} ({how})")
        return held

    def _show(self) -> None:
        try:
            show_copies([(held.copy, held.path) for held in self._held])
        except OSError as error:
            why = "no more user namespaces" if error.errno == errno.ENOSPC else error.strerror
            self.said.append(f"this host allows no mounts ({why}), so only Python's modules are taken from the copies")
            # Behind a copy its source, for links that lead out of it.
            sys.path[:] = dict.fromkeys(path for folder in sys.path for path in (self._moved(folder), folder))
            sys.dont_write_bytecode = True  # a copy stays as it is
        importlib.invalidate_caches()

    def _moved(self, folder: str) -> str:
        """Return where a folder is in a copy; the folder itself if it is in none."""
        real = Path(os.path.realpath(folder))
        found = next((held for held in self._held if folder and real.is_relative_to(held.path)), None)
        return str(found.copy / real.relative_to(found.path)) if found else folder


def remove_unused(to: Path | None, environment: Mapping[str, str]) -> None:
    """Remove the copies that no process uses, after the ranks' end: in a scheduler's job those of other jobs."""
    clear(store_folder(to, environment), job=job_of(environment))
