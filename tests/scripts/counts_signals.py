"""Waits for SIGUSR1, and a second longer, and prints how often it came."""

import signal
import time

heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
print("ready", flush=True)
end = time.monotonic() + 30
while not heard and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1)
print("heard", len(heard), flush=True)
