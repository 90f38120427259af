"""The last rank raises while the others do something else, for longer than a test waits."""

import os
import time

if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    raise ValueError("the loss exploded\nand here is how")
time.sleep(300)
