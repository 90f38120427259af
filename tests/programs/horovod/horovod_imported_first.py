"""A workload that imports Horovod before the runner has started it."""

import importlib.util

assert importlib.util.find_spec("horovod.torch")
import horovod.torch as hvd  # noqa: E402 - after the look for it, as programs do


def main(run, argv):
    hvd.init()
    run.print(f"{hvd.size()} ranks")
