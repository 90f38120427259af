"""A forked child ends with each of these exit codes, by Python's usual end: ``forks.py CODE…``."""

import os
import sys
import time

import torch.distributed as dist

dist.init_process_group("gloo")
for code in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        sys.exit(int(code))
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
time.sleep(2.5)
dist.barrier()
print("parent done", flush=True)
