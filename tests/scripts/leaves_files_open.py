"""Ends with files open that it has written to, a handler of its own, and a temporary file."""

import atexit
import gzip
import json
import os
import tempfile

import torch  # noqa: F401  (its threads are there at the end)

rank = os.environ["RANK"]
log = open(f"log{rank}", "w")
log.write("not flushed by the program")
atexit.register(lambda: json.dump("by a handler", open(f"handler{rank}", "w")))
packed = gzip.open(f"packed{rank}", "wt")
packed.write("in full")
temporary = tempfile.NamedTemporaryFile(dir=".")
