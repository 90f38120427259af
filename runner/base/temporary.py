"""The folder for temporary files, in which data loader processes make sockets by which they send tensors."""

from __future__ import annotations

import os
import tempfile

_MOST = 107 - len("/pymp-12345678/listener-12345678")  # bytes that multiprocessing leaves of a Unix socket's name
SHORTER = "set a shorter one, such as TMPDIR=/tmp"


def no_room_for_sockets() -> str:
    """Why data loader processes would fail or hang here; "" if they work."""
    folder = tempfile.gettempdir()
    length = len(os.fsencode(folder))
    if length <= _MOST:
        return ""
    from multiprocessing import util

    if hasattr(util, "_get_base_temp_dir"):  # newer Pythons take another folder then
        return ""
    return f"TMPDIR={folder} has {length} bytes, too many for the sockets of data loader processes ({_MOST} at most)"
