"""The runner, where a process that is no agent has the name of its host's: ``name_is_taken.py HOW ARGUMENTS…``.

HOW: silent (it never answers), deaf (it does not listen), other (another user's, as root only). TOOK_IN: a folder with a file for each
rank that is about to be the runner.
"""

import os
import socket
import sys
import time
from pathlib import Path

from runner.cli import main
from runner.guard.process.identity import identity
from runner.guard.process.proxy import agent_name


def take(how: str, name: bytes) -> None:
    """Have another process take it, until this one has ended."""
    proxy, (done, tell) = os.getpid(), os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:  # no child of the launcher's
            if how == "other":
                os.setuid(65534)
            own = socket.socket(socket.AF_UNIX)
            try:
                own.bind(name)
            except OSError:  # another rank's has it
                os._exit(0)
            if how != "deaf":
                own.listen()
            os.close(tell)
            for number in (0, 1, 2):
                os.close(number)
            while os.path.exists(f"/proc/{proxy}"):
                time.sleep(0.1)
        os._exit(0)
    os.close(tell)
    os.read(done, 1)
    os.close(done)
    os.wait()


if __name__ == "__main__":
    how = sys.argv.pop(1)
    take(how, agent_name(identity().launch))
    if folder := os.environ.get("TOOK_IN"):
        Path(folder, str(os.getpid())).touch()
    main()
