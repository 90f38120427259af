"""Fails with a file open, and with something that keeps the process: ``fails_and_takes_long.py handler|thread``."""

import atexit
import sys
import threading
import time

log = open("log", "w")
log.write("found")
if sys.argv[1] == "handler":
    atexit.register(time.sleep, 30)
else:
    threading.Thread(target=time.sleep, args=(30,)).start()
raise ValueError("boom")
