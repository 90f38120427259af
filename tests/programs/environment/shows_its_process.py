"""Prints as JSON what this rank's process has, and which process has imported for it."""

import json
import os
import resource
import sys

mask = os.umask(0)
os.umask(mask)
print(
    json.dumps(
        {
            "rank": os.environ["RANK"],
            "importer": os.getppid(),
            "python": sys.executable,
            "folder": os.getcwd(),
            "umask": mask,
            "affinity": sorted(os.sched_getaffinity(0)),
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "own": os.environ.get("OWN"),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        }
    ),
    flush=True,
)
