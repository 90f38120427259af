"""Another script takes the place of this one, by os.execv: ``puts_another_in_its_place.py SCRIPT [MODULE TO IMPORT BEFORE]``."""

import importlib
import os
import sys

for module in sys.argv[2:]:
    importlib.import_module(module)
os.execv(sys.executable, [sys.executable, sys.argv[1]])
