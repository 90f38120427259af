"""Prints what a rank finds in the folder that it is given: the file of a module, whether a copy is mounted, and whether it is writable."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil

folder = Path(sys.argv[1])
if "--kill-agent" in sys.argv:  # with all that it has started
    psutil.Process().parent().parent().kill()
    signal.pause()
if folder.is_dir():
    sys.path.append(str(folder))
    import staged_library

    mounted = "mounted" if any(line.split()[4] == str(folder) for line in open("/proc/self/mountinfo")) else "plain"
    try:
        (folder / "new").write_text("")
        writable = "writable"
    except OSError:
        writable = "read-only"
    size = os.path.getsize(folder / "data")
    print("staged:", staged_library.FILE, mounted, size, writable, flush=True)
