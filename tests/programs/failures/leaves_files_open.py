"""Ends with files open that it has written to, a handler of its own, and a temporary file."""

import atexit
import gzip
import json
import os
import tempfile
from types import SimpleNamespace

rank = os.environ["RANK"]
early = SimpleNamespace(file=open(f"early{rank}", "w"))
early.itself = early
early.file.write("before torch")
early.packed = gzip.open(f"early_packed{rank}", "wt")
early.packed.write("in a cycle")

import torch  # noqa: E402, F401  (after files are open, which is tried; and its threads are there at the end)

log = open(f"log{rank}", "w")
log.write("not flushed by the program")
atexit.register(lambda: json.dump("by a handler", open(f"handler{rank}", "w")))
packed = gzip.open(f"packed{rank}", "wt")
packed.write("in full")
temporary = tempfile.NamedTemporaryFile(dir=".")
