"""Imports two modules without Python's garbage collector, and prints when it is enabled: ``without_collector.py [disabled]``."""

import gc
import sys

from runner.torchrun.import_hooks import import_without_collector, when_imported

import_without_collector("slow", "broken")
when_imported("slow", lambda: print("imported", gc.isenabled()))
if "disabled" in sys.argv:
    gc.disable()
import slow  # noqa: E402, F401  (after what is told of its import; the import is all that is tried)

try:
    import broken  # noqa: F401  (as above)
except ValueError:
    print("broken")
print("after", gc.isenabled())
