"""Runs another script in a process of its own: ``trains_in_a_child.py SCRIPT``."""

import subprocess
import sys

sys.exit(subprocess.run([sys.executable, sys.argv[1]]).returncode)
