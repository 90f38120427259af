"""Print whether torch is there before the program has imported it, and whether a variable counts
that it sets then (one that torch reads when it is imported).

``before_torch.py FILE``: rank 0 never imports torch, and the others use the job's store nevertheless, and then make FILE.
"""

import os
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK"])
is_there = "torch" in sys.modules
os.environ["PYTORCH_JIT"] = "0"

if sys.argv[1:] and rank == 0:
    for _ in range(3000):
        if Path(sys.argv[1]).exists():
            break
        time.sleep(0.1)
    print(f"rank 0: {is_there} {'torch' in sys.modules}")
else:
    import torch
    from torch.distributed import TCPStore

    if sys.argv[1:]:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        store.set("key", "value")
        assert store.get("key") == b"value"
        Path(sys.argv[1]).touch()

    def own(x: int) -> int:
        return x

    print(f"rank {rank}: {is_there} {torch.jit.script(own) is own}")
