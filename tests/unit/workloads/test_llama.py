"""The Llama model, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from runner.base.errors import UsageError
from tests.launching import ROOT
from workloads.models.llama import (
    SIZES,
    KeyValueCache,
    Llama,
    LlamaConfig,
    continuation,
    flops_per_token,
    parameter_count,
)
from workloads.models.llama_weights import read, read_config

DEBUG = SIZES["debug"]
TIED = replace(DEBUG, tie_word_embeddings=True)


pytestmark = pytest.mark.needs("workloads.llama")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small wait for the other threads only, long where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(config: LlamaConfig = DEBUG, dtype: torch.dtype = torch.float64) -> Llama:
    torch.manual_seed(0)
    return Llama(config).to(dtype)


def some_tokens(batch: int = 2, length: int = 12) -> Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(1))


def generate(model: Llama, tokens: Tensor, count: int, **how: Any) -> Iterator[Tensor]:
    """Continue tokens by a key-value cache."""
    caches = model.new_caches()
    return continuation(lambda new: model(new, caches), tokens, count, **how)


class PassThrough(nn.Module):
    def forward(self, x: Tensor, *others: Any) -> Tensor:
        return x


@pytest.mark.parametrize("size", SIZES)
def test_the_number_of_parameters(size: str) -> None:
    with torch.device("meta"):
        model = Llama(SIZES[size])
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(SIZES[size])


@pytest.mark.parametrize(
    ("size", "published"), [("1b", 1.24), ("3b", 3.21), ("7b", 6.74), ("8b", 8.03), ("13b", 13.02), ("70b", 68.98)]
)
def test_published_sizes(size: str, published: float) -> None:
    assert round(parameter_count(SIZES[size]) / 1e9, 2) == published


def test_flops_are_six_per_weight_and_those_of_attention() -> None:
    """Counted by torch: a linear layer's forward is 2 per weight and token, and a training step is three forwards."""
    length = 64
    model = made(dtype=torch.float32)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others count 0
        model(some_tokens(1, length))
    assert flops_per_token(model.config, length) == pytest.approx(3 * counter.get_total_flops() / length, rel=0.01)


@pytest.mark.parametrize("wrong", [{"num_attention_heads": 7}, {"num_key_value_heads": 3}, {"hidden_size": 8}])
def test_dimensions_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"num_attention_heads .*; change one of them"):
        replace(DEBUG, **wrong)


def test_it_is_transformers_llama() -> None:
    """Grouped queries, tied weights and rope scaling among it; the weights as save_pretrained() writes them."""
    for name in ("plain", "tied-and-scaled"):
        folder = ROOT / "tests" / "data" / "llama" / name
        expected = load_file(folder / "expected.safetensors")
        config = read_config(folder)
        model = Llama(config)
        model.load_state_dict(dict(read(folder)))
        with torch.no_grad():
            logits = model(expected["tokens"])
            unscaled = Llama(replace(config, rope_scaling=None))
            unscaled.load_state_dict(model.state_dict())
            assert (unscaled(expected["tokens"]) - logits).abs().max() > 0.1 or not config.rope_scaling
        assert (logits - expected["logits"]).abs().max() < 1e-5
        assert torch.stack(list(generate(model, expected["tokens"][:, :8], 16)), dim=1).equal(expected["greedy"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_token_changes_nothing_before_it(dtype: torch.dtype) -> None:
    model, tokens = made(dtype=dtype), some_tokens()
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 256
    before, after = model(tokens), model(changed)
    assert before.dtype == dtype
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(dim=-1).all()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at that of a layer's input
def test_a_compiled_layer_is_one_graph() -> None:
    model = made(dtype=torch.float32)
    expected = model(some_tokens())
    for layer in model.model.layers:
        layer.compile(backend="eager", fullgraph=True)
    assert torch.equal(model(some_tokens()), expected)


def test_the_table_of_rotations_is_no_part_of_the_state() -> None:
    model = made()
    names = set(model.state_dict())
    with torch.inference_mode():
        model(some_tokens())
    model(some_tokens()).sum().backward()  # a table made in inference mode could not be trained with
    assert set(model.state_dict()) == names
    assert not list(model.buffers())


def test_from_meta_to_initialised() -> None:
    with torch.device("meta"):
        model = Llama(TIED)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for module in model.modules():
        if list(module.parameters(recurse=False)):
            module.reset_parameters()  # type: ignore[operator]  # a Module's attributes have no type
    assert model.lm_head.weight is model.model.embed_tokens.weight
    stds = {name: float(tensor.std()) for name, tensor in model.state_dict().items() if tensor.dim() == 2}
    for name, std in stds.items():
        is_residual = "o_proj" in name or "down_proj" in name
        assert std == pytest.approx(0.02 / (8**0.5 if is_residual else 1), rel=0.1), name
    assert model(some_tokens()).isfinite().all()


def test_tied_weights_stay_one_parameter() -> None:
    model = made(TIED)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(TIED)
    model(some_tokens()).sum().backward()
    assert model.lm_head.weight.grad is model.model.embed_tokens.weight.grad
    model.lm_head = PassThrough()  # type: ignore[assignment]  # as a pipeline stage has it
    model.to(torch.float32)
    assert model(some_tokens()).shape == (2, 12, DEBUG.hidden_size)


@pytest.mark.parametrize("parts", [[12], [1] * 12, [5, 4, 3], [1, 10, 1]])
def test_logits_do_not_depend_on_how_a_cache_is_filled(parts: list[int]) -> None:
    model = made()
    caches = model.new_caches()
    logits = torch.cat([model(part, caches) for part in some_tokens().split(parts, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(some_tokens()), rtol=1e-12, atol=1e-12)
    assert [cache.length for cache in caches] == [12] * 4
    assert KeyValueCache().length == 0


def test_tokens_are_drawn_by_the_generator() -> None:
    model = made()

    def drawn(seed: int, temperature: float) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        new = generate(model, some_tokens(), 20, temperature=temperature, generator=generator)
        return [token.tolist() for token in new]

    assert drawn(0, 1.0) == drawn(0, 1.0) != drawn(1, 1.0)
    assert drawn(0, 1e-6) == [token.tolist() for token in generate(model, some_tokens(), 20)]
