"""A forked child ends with an exit code, by Python's usual end: ``forks.py CODE``."""

import os
import sys
import time

import torch.distributed as dist

dist.init_process_group("gloo")
pid = os.fork()
if pid == 0:
    sys.exit(int(sys.argv[1]))
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
time.sleep(2.5)
dist.barrier()
print("parent done", flush=True)
