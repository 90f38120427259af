"""A file system that shows a folder, read only, and counts what is asked of it: opens, bytes read, and looks at files.

    python -m tests.campaigns.site.counting FOLDER MOUNTPOINT COUNTS.json

Needs libfuse2 and mfusepy. The counts are written once a second, and when it is unmounted.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mfusepy

DELAY = float(os.environ.get("DELAY_MS", "0")) / 1000  # seconds that each open and look takes more


class Counting(mfusepy.Operations):
    def __init__(self, folder: str, counts: Path) -> None:
        self._folder, self._file = folder, counts
        self.counts = {"opens": 0, "bytes": 0, "looks": 0}
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        while True:
            self.write()
            time.sleep(0.5)

    def write(self) -> None:
        partial = self._file.with_suffix(".new")
        partial.write_text(json.dumps(self.counts))
        partial.replace(self._file)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        self.counts["looks"] += 1
        time.sleep(DELAY)
        try:
            state = os.lstat(self._folder + path)
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from None
        found = {name: getattr(state, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")}
        return found | {name: getattr(state, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._folder + path)]

    def readlink(self, path: str) -> str:
        return os.readlink(self._folder + path)

    def open(self, path: str, flags: int) -> int:
        self.counts["opens"] += 1
        time.sleep(DELAY)
        return os.open(self._folder + path, os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        content = os.pread(fh, size, offset)
        self.counts["bytes"] += len(content)
        return content

    def release(self, path: str, fh: int) -> None:
        os.close(fh)


if __name__ == "__main__":
    folder, mountpoint, counts = sys.argv[1:]
    shown = Counting(folder, Path(counts))
    shown.use_ns = True
    mfusepy.FUSE(shown, mountpoint, foreground=True, ro=True, nothreads=False, max_read=131072)
    shown.write()
