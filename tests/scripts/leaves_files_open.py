"""Ends with files open that it has written to, a handler of its own, and a temporary file."""

import atexit
import gc
import gzip
import json
import os
import tempfile
from types import SimpleNamespace

rank = os.environ["RANK"]
early = SimpleNamespace(file=open(f"early{rank}", "w"))
early.itself = early  # a cycle, from before torch's objects, over which the collector passes later
early.file.write("before torch")

import torch  # noqa: E402, F401  (its threads are there at the end)

assert gc.get_freeze_count()

log = open(f"log{rank}", "w")
log.write("not flushed by the program")
atexit.register(lambda: json.dump("by a handler", open(f"handler{rank}", "w")))
packed = gzip.open(f"packed{rank}", "wt")
packed.write("in full")
temporary = tempfile.NamedTemporaryFile(dir=".")
