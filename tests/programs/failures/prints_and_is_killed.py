"""Is killed right after a line of output, which is not flushed."""

import os
import signal

print("a line")
os.kill(os.getpid(), signal.SIGKILL)
