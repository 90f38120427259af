"""Waits for SIGUSR1, and a second longer, and prints how often it came."""

import signal
import time

received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
print("ready", flush=True)
end = time.monotonic() + 30
while not received and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1)
print("signals", len(received), flush=True)
