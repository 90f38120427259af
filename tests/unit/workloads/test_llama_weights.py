"""The files of a Llama model's weights, in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.base.errors import UsageError
from tests.unit.workloads.test_llama import DEBUG, TIED, made
from workloads.models.llama import LlamaConfig, RopeScaling
from workloads.models.llama_weights import read, read_config, write


@pytest.mark.parametrize("is_divided", [False, True])
@pytest.mark.parametrize("config", [DEBUG, replace(TIED, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 128))])
def test_weights_go_and_come_back(tmp_path: Path, config: LlamaConfig, is_divided: bool) -> None:
    model = made(config, torch.float32)
    write(tmp_path / "out", config, model.state_dict())
    if is_divided:
        divide(tmp_path / "out")
    assert read_config(tmp_path / "out") == config
    weights = dict(read(tmp_path / "out"))
    assert weights.keys() == model.state_dict().keys()
    assert all(weight.equal(model.state_dict()[name]) for name, weight in weights.items())
    some = ["lm_head.weight", "model.layers.3.mlp.up_proj.weight"]
    assert sorted(name for name, _ in read(tmp_path / "out", some)) == some


def divide(folder: Path) -> None:
    """Put each tensor in a file of its own, with an index, as transformers divides large models."""
    tensors = load_file(folder / "model.safetensors")
    places = {name: f"model-{number:05}-of-{len(tensors):05}.safetensors" for number, name in enumerate(tensors, 1)}
    for name, place in places.items():
        save_file({name: tensors[name]}, folder / place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "model.safetensors").unlink()


def test_weights_are_not_written_over(tmp_path: Path) -> None:
    model = made()
    write(tmp_path, DEBUG, model.state_dict())
    with pytest.raises(UsageError, match="holds a model already; name another folder"):
        write(tmp_path, DEBUG, model.state_dict())


def set_to(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (set_to(model_type="mistral"), "model_type mistral is not supported"),
        (set_to(attention_bias=True), "attention_bias True is not supported"),
        (set_to(hidden_act="gelu"), "hidden_act gelu is not supported"),
        (set_to(quantization_config={"bits": 4}), "quantization_config {'bits': 4} is not supported"),
        (set_to(rope_scaling={"type": "linear", "factor": 2.0}), "rope_scaling linear is not supported, only llama3"),
        (set_to(rope_scaling={"rope_type": "llama3", "factor": 2.0}), "its rope_scaling has no low_freq_factor"),
        (set_to(head_dim=16), "head_dim 16 is not hidden_size ÷ num_attention_heads"),
        (set_to(num_attention_heads=7, head_dim=None), "hidden_size 64 ÷ num_attention_heads 7 is no even number"),
        (set_to(vocab_size=None), "vocab_size is None, no positive integer"),
        (set_to(hidden_size="64"), "hidden_size is '64', no positive integer"),
        (set_to(intermediate_size=120), "has shape [128, 64], the config says [120, 64]"),
        (set_to(num_hidden_layers=5), "it has no model.layers.4."),
        (lambda folder: (folder / "config.json").unlink(), "config.json: [Errno 2] No such file or directory"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: Expecting property name"),
        (lambda folder: (folder / "config.json").write_text("[]"), "vocab_size is None"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: No such file or directory"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"PK"), "model.safetensors: Error while"),
    ],
)
def test_what_is_no_llama_is_refused(tmp_path: Path, damage: Callable[[Path], object], expected: str) -> None:
    write(tmp_path, DEBUG, made().state_dict())
    damage(tmp_path)
    with pytest.raises(UsageError) as raised:
        dict(read(tmp_path))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "; name a folder with" in str(raised.value)
