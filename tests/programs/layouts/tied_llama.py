"""The workload of Llama, whose embedding and head have one weight."""

from dataclasses import replace
from unittest.mock import patch

from runner.training.run import Run
from workloads import llama
from workloads.models.llama import SIZES


def main(run: Run, options: llama.Options) -> None:
    # Other workloads may run in this process later.
    with patch.dict(SIZES, debug=replace(SIZES["debug"], tie_word_embeddings=True)):
        llama.main(run, options)
