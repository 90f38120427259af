"""Where torch differs between the releases that the runner works with. Imports no torch at load.

Each entry names the release that makes it unnecessary, so that a higher floor (``features.py``) deletes lines here. What a release
cannot do at all is refused by ``features.py``; here is what it does in another way.
"""

from __future__ import annotations

from typing import Any

from runner.torch_build import release_of, torch_build

_RELEASE = release_of(torch_build().version)

# 2.8: before it only the server without libuv takes a socket that listens already. Tried first, libuv's would print an error.
SERVE_SOCKET: dict[str, Any] = {} if _RELEASE >= (2, 8, True) else {"use_libuv": False}
