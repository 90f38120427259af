"""Llama's weights in Hugging Face's layout, which ``LlamaForCausalLM`` reads and writes.

FOLDER/config.json
    model.safetensors                    tensors by name; or, as transformers writes large models,
    model-00001-of-00002.safetensors …   some of them each, and
    model.safetensors.index.json         which is where
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from runner.base.errors import UsageError
from workloads.models.llama import Llama, LlamaConfig, RopeScaling

_CONFIG, _ONE, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"

# What config.json may say beside the dimensions. Another value is another model.
_SUPPORTED = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (None,),
}
_OLD_DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}  # of files that leave them out


def read_config(folder: Path) -> LlamaConfig:
    """The dimensions in a folder's config.json.

    Raises:
        UsageError: there is none, or it is of another model, or has what is not supported here.
    """
    given = _json(folder / _CONFIG)
    for key, values in _SUPPORTED.items():
        if given.get(key, values[0]) not in values:
            raise _refused(folder, f"{key} {str(given[key])[:40]} is not supported")
    rope = {"rope_theta": given.get("rope_theta", 10000.0)}
    rope |= given.get("rope_scaling") or {}
    rope |= given.get("rope_parameters") or {}  # both, since transformers 5
    found: dict[str, Any] = _OLD_DEFAULTS | {"num_key_value_heads": given.get("num_attention_heads")} | given
    found |= {"rope_theta": rope["rope_theta"], "rope_scaling": _rope_scaling(folder, rope)}
    for field in fields(LlamaConfig):
        value = found.get(field.name)
        if field.type == "int" and not (isinstance(value, int) and value > 0):
            raise _refused(folder, f"{field.name} is {value!r:.40}, no positive integer")
    try:
        config = LlamaConfig(**{field.name: found[field.name] for field in fields(LlamaConfig) if field.name in found})
    except UsageError as error:
        raise _refused(folder, error.message) from None
    if given.get("head_dim") not in (None, config.head_dim):
        raise _refused(folder, f"head_dim {given['head_dim']} is not hidden_size ÷ num_attention_heads")
    return config


def write(folder: Path, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write whole tensors, by Hugging Face's names, in one file.

    Raises:
        UsageError: the folder holds weights already.
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.safetensors")) or (folder / _CONFIG).exists():
        raise UsageError(f"{folder} holds a model already", fix="name another folder")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if config.tie_word_embeddings:
        whole.pop(_HEAD, None)  # written once, as the table
    save_file(whole, folder / _ONE, metadata={"format": "pt"})
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    content = json.dumps(_hugging_face(config, dtype), indent=2) + "\n"
    (folder / _CONFIG).write_text(content, encoding="utf-8")  # last: without it the folder is no model


def read(folder: Path, names: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of these names, or all, one at a time, in host memory. A tied lm_head.weight is the table's.

    Raises:
        UsageError: the folder's config is refused, or files or tensors are missing, damaged or of other shapes.
    """
    config = read_config(folder)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Llama(config).state_dict().items()}
    places = _places(folder)
    by_file: dict[str, list[tuple[str, str]]] = {}
    for name in shapes if names is None else names:
        stored = _TABLE if name == _HEAD and config.tie_word_embeddings else name
        if stored not in places:
            raise _damaged(folder, f"it has no {stored}")
        by_file.setdefault(places[stored], []).append((name, stored))
    for file, pairs in by_file.items():
        try:
            with safe_open(folder / file, framework="pt") as tensors:
                for name, stored in pairs:
                    tensor = tensors.get_tensor(stored)
                    if tensor.shape != shapes[name]:
                        raise _damaged(
                            folder, f"{name} has shape {list(tensor.shape)}, the config says {list(shapes[name])}"
                        )
                    yield name, tensor
        except (OSError, SafetensorError) as error:
            raise _damaged(folder, f"{file}: {error}") from None


def _places(folder: Path) -> dict[str, str]:
    """The file's name of each tensor."""
    if (folder / _INDEX).exists():
        return dict(_json(folder / _INDEX).get("weight_map") or {})
    try:
        with safe_open(folder / _ONE, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), _ONE)
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, f"{_ONE}: {error}") from None


def _rope_scaling(folder: Path, rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise _refused(folder, f"rope_scaling {kind} is not supported, only llama3")
    try:
        return RopeScaling(**{field.name: rope[field.name] for field in fields(RopeScaling)})
    except KeyError as error:
        raise _refused(folder, f"its rope_scaling has no {error.args[0]}") from None


def _hugging_face(config: LlamaConfig, dtype: str) -> dict[str, Any]:
    """Return the content of config.json for a model, for transformers 4 and 5."""
    scaling = {"rope_type": "llama3", **asdict(config.rope_scaling)} if config.rope_scaling else None
    return {
        "architectures": ["LlamaForCausalLM"],
        **{key: values[0] for key, values in _SUPPORTED.items() if values[0] is not None},
        **asdict(config),
        "rope_scaling": scaling,
        "head_dim": config.head_dim,
        "torch_dtype": dtype,
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path.parent, f"{path.name}: {error}") from None
    return content if isinstance(content, dict) else {}


def _refused(folder: Path, reason: str) -> UsageError:
    return UsageError(
        f"{folder / _CONFIG} cannot be used: {reason}", fix="name a folder with a Llama of Hugging Face's layout"
    )


def _damaged(folder: Path, reason: str) -> UsageError:
    return UsageError(
        f"{folder} holds no whole model ({' '.join(reason.split())[:160]})",
        fix="name a folder with config.json and model.safetensors, as Hugging Face lays them out",
    )
