"""The last rank raises while the others compute and would do so for minutes."""

import os
import time

if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    raise ValueError("the loss exploded\nand here is how")
time.sleep(120)
