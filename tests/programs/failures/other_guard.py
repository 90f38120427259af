"""Another guard of a job of three ranks, which tells that its rank has failed: ``other_guard.py PORT KEY RANK``."""

import sys
import time

from runner.guard.link.link import Address, Link
from runner.guard.link.messages import Failed

port, key, rank = sys.argv[1:]
link = Link()
link.join(Address(host="127.0.0.1", port=int(port), key=key, rank=int(rank), size=3), lambda told: None)
link.tell(int(rank), Failed(attempt=0, again=False, failure=None))
time.sleep(60)
