"""Has a guard make its child with ever more files allowed, until there is room. Prints what each failure has left open and running."""

import os
import resource
import sys

import psutil

from runner.guard.nursery import Lifeline, Nursery

nursery = Nursery(listener=None, signals=())
process, hard = psutil.Process(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
first = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
os.close(first)
before = process.num_fds()
while True:
    resource.setrlimit(resource.RLIMIT_NOFILE, (first, hard))
    try:
        child = nursery.fork()
    except OSError:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        left = psutil.wait_procs(process.children(), timeout=20)[1]
        print("left:", process.num_fds() - before, "files,", len(left), "processes", flush=True)
        first += 1
        continue
    break
if isinstance(child, Lifeline):
    sys.exit()
child.group.close()
