"""Print, as JSON lines, what a script written for torchrun finds. No process group is made here."""

import json
import os
import sys

import torch.distributed as dist

names = [
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
]
found = {
    "variables": {name: os.environ[name] for name in names if name in os.environ},
    "argv": sys.argv,
    "path0": sys.path[0],
    "name": __name__,
    "file": __file__,
    "is_main": sys.modules["__main__"].__dict__ is globals(),
    "package": __package__,
    "initialized": dist.is_initialized(),
    "elastic": dist.is_torchelastic_launched(),
}
print(json.dumps(found), flush=True)
