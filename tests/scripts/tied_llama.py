"""The workload of Llama, whose embedding and head have one weight."""

from dataclasses import replace

from runner.training.run import Run
from workloads import llama
from workloads.models.llama import SIZES


def main(run: Run, argv: list[str]) -> None:
    SIZES["debug"] = replace(SIZES["debug"], tie_word_embeddings=True)
    llama.main(run, argv)
