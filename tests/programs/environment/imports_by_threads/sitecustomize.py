"""Python runs this first: a thread of the launcher's own process, which forks, writes down what it imports."""

import os
import sys
import threading

_OWN = os.getpid()


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "import" and os.getpid() == _OWN and threading.current_thread() is not threading.main_thread():
        with open(os.environ["IMPORTS_BY_THREADS"], "a") as file:
            file.write(f"{threading.current_thread().name}: {arguments[0]}\n")


sys.addaudithook(_note)
open(os.environ["IMPORTS_BY_THREADS"], "a").close()  # it is loaded
