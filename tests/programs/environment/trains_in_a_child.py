"""Runs another script in a process of its own, which meets at another port if one is given: ``trains_in_a_child.py SCRIPT [PORT]``."""

import os
import subprocess
import sys

ports = dict(zip(["MASTER_PORT"], sys.argv[2:], strict=False))
sys.exit(subprocess.run([sys.executable, sys.argv[1]], env=os.environ | ports).returncode)
