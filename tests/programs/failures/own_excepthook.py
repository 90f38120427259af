"""Fails, with an excepthook of its own."""

import sys

sys.excepthook = lambda kind, error, trace: print("hooked", error, flush=True)
raise ValueError("x")
