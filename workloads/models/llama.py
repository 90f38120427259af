"""Llama (arXiv:2302.13971, 2307.09288, 2407.21783): a chain of modules under the names of Hugging Face's weights.

Every module of the chain (``model.embed_tokens``, each of ``model.layers``, ``model.norm``, ``lm_head``) may be replaced by
one that returns its first argument: what remains is a pipeline stage. A layer gets (x, cos, sin, cache), always four,
all by position; the cosines and sines have no gradient and are not to be rounded to bf16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from runner.base.errors import UsageError


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's longer context: rotations slower than the old one's are slowed further (Hugging Face's "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LlamaConfig:
    """The dimensions, named as in Hugging Face's config.json.

    Raises:
        UsageError: they contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # inside the feed-forward part
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int  # each is shared by equally many heads
    max_position_embeddings: int  # the longest sequence
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False  # lm_head.weight is embed_tokens.weight

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise UsageError(
                f"hidden_size {self.hidden_size} ÷ num_attention_heads {self.num_attention_heads} is no even number, "
                "which rotary embeddings need",
                fix="change one of them",
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise UsageError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads "
                f"{self.num_key_value_heads}",
                fix="change one of them",
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


_LLAMA3: dict[str, Any] = {"rope_theta": 500000.0}
_LLAMA32 = _LLAMA3 | {"rope_scaling": RopeScaling(32.0, 1.0, 4.0, 8192), "tie_word_embeddings": True}

# The small ones read bytes. The others are as published, by the config.json of meta-llama's Llama-3.2-1B and -3B,
# Llama-2-7b-hf, Meta-Llama-3-8B, Llama-2-13b-hf and Llama-2-70b-hf.
SIZES: dict[str, LlamaConfig] = {
    #                     vocab  hidden  inner layers heads kv length
    "debug": LlamaConfig(256, 64, 128, 4, 8, 4, 512),
    "15m": LlamaConfig(256, 512, 1088, 6, 8, 4, 1024),
    "110m": LlamaConfig(256, 768, 1920, 16, 12, 12, 2048),
    "350m": LlamaConfig(256, 1024, 3328, 24, 16, 16, 2048),
    "1b": LlamaConfig(128256, 2048, 8192, 16, 32, 8, 131072, **_LLAMA32),
    "3b": LlamaConfig(128256, 3072, 8192, 28, 24, 8, 131072, **_LLAMA32),
    "7b": LlamaConfig(32000, 4096, 11008, 32, 32, 32, 4096),
    "8b": LlamaConfig(128256, 4096, 14336, 32, 32, 8, 8192, **_LLAMA3),
    "13b": LlamaConfig(32000, 5120, 13824, 40, 40, 40, 4096),
    "70b": LlamaConfig(32000, 8192, 28672, 80, 64, 8, 4096),
}


def parameter_count(config: LlamaConfig) -> int:
    """The number of parameters, a tied one counted once."""
    hidden, inner = config.hidden_size, config.intermediate_size
    attention = 2 * hidden * hidden + 2 * hidden * config.num_key_value_heads * config.head_dim
    layer = attention + 3 * hidden * inner + 2 * hidden
    tables = 1 if config.tie_word_embeddings else 2
    return config.num_hidden_layers * layer + tables * config.vocab_size * hidden + hidden


def flops_per_token(config: LlamaConfig, length: int) -> int:
    """Floating-point operations of a training step per token: 6 N + 12 × layers × hidden × length.

    PaLM's model FLOPs (arXiv:2204.02311, appendix B): recomputation does not count, and that attention is causal is not
    deducted. N leaves out the table of embeddings if lm_head has its own, as looking up multiplies nothing (torchtitan).
    """
    lookup = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    attention = 12 * config.num_hidden_layers * config.hidden_size * length
    return 6 * (parameter_count(config) - lookup) + attention


def rotary_table(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [max_position_embeddings, head_dim / 2] of the rotary embeddings (arXiv:2104.09864)."""
    exponents = torch.arange(0, config.head_dim, 2, device=device).to(dtype) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if scaling := config.rope_scaling:
        turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = kept.clamp(0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling.factor)
    angles = torch.arange(config.max_position_embeddings, device=device).to(dtype)[:, None] * frequencies
    return angles.cos(), angles.sin()


@dataclass
class KeyValueCache:
    """The keys and values [batch, heads, length, head_dim] that one layer's attention has seen."""

    keys: Tensor | None = None
    values: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.keys is None else self.keys.size(2)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take in those of the next tokens; returns all so far."""
        self.keys = keys if self.keys is None else torch.cat((self.keys, keys), dim=2)
        self.values = values if self.values is None else torch.cat((self.values, values), dim=2)
        return self.keys, self.values


class Embedding(nn.Embedding):
    """A table of vectors from a normal distribution, 0.02 wide."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Projection(nn.Linear):
    """A linear layer without bias; its weights are from a normal distribution, ``std`` wide."""

    def __init__(self, inputs: int, outputs: int, std: float = 0.02) -> None:
        self.std = std  # before __init__, which calls reset_parameters()
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


def _residual_std(config: LlamaConfig) -> float:
    """Return the standard deviation of the weights that write to the residual stream, so that its variance does not grow with depth (GPT-2)."""
    return 0.02 / math.sqrt(2 * config.num_hidden_layers)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary embeddings: [batch, length, hidden] → the same.

    The number of heads is what the projections give: tensor parallelism leaves each rank some of them.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        shared = config.num_key_value_heads * config.head_dim
        self.q_proj = Projection(config.hidden_size, config.hidden_size)
        self.k_proj = Projection(config.hidden_size, shared)
        self.v_proj = Projection(config.hidden_size, shared)
        self.o_proj = Projection(config.hidden_size, config.hidden_size, _residual_std(config))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        batch, length, _ = x.shape
        before = cache.length if cache else 0
        cos, sin = cos[before : before + length], sin[before : before + length]
        queries = _rotated(self._heads(self.q_proj(x), batch, length), cos, sin)
        keys = _rotated(self._heads(self.k_proj(x), batch, length), cos, sin)
        values = self._heads(self.v_proj(x), batch, length)
        if cache is not None:
            keys, values = cache.append(keys, values)
        mask = None
        if before and length > 1:  # is_causal would align the first query with the first key
            mask = torch.ones(length, before + length, dtype=torch.bool, device=x.device).tril(before)
        attended = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=not before,
            enable_gqa=keys.size(1) != queries.size(1),  # only then, as fewer kernels support it
        )
        outputs: Tensor = self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))
        return outputs

    def _heads(self, x: Tensor, batch: int, length: int) -> Tensor:
        """[batch, length, heads × head_dim] → [batch, heads, length, head_dim]."""
        return x.view(batch, length, -1, self.head_dim).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair (i, i + head_dim / 2) turned by its position's angle, in the table's precision: Hugging Face's order."""
    first, second = x.chunk(2, dim=-1)  # the products are of the wider type
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202): [..., hidden] → [..., hidden]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = Projection(config.hidden_size, config.intermediate_size)
        self.up_proj = Projection(config.hidden_size, config.intermediate_size)
        self.down_proj = Projection(config.intermediate_size, config.hidden_size, _residual_std(config))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return outputs


class Layer(nn.Module):
    """Attention, then the feed-forward part, each normalised before and added to its input: [batch, length, hidden]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        outputs: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return outputs


class LlamaModel(nn.Module):
    """All but the head: tokens [batch, length] → [batch, length, hidden]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        # No buffers: the model is made and sharded on the meta device, and these are unsharded and never materialized.
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def forward(self, tokens: Tensor, caches: Sequence[KeyValueCache] | None = None) -> Tensor:
        x = self.embed_tokens(tokens)
        cos, sin = self._table(x.device, torch.float64 if x.dtype == torch.float64 else torch.float32)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, caches[index] if caches else None)
        outputs: Tensor = self.norm(x)
        return outputs

    def _table(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if (device, dtype) not in self._tables:
            with torch.inference_mode(False):  # training may use it after an evaluation has made it
                self._tables[device, dtype] = rotary_table(self.config, device, dtype)
        return self._tables[device, dtype]


class Llama(nn.Module):
    """Tokens [batch, length] → logits [batch, length, vocab_size]; or less of it, where parts are replaced."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = Projection(config.hidden_size, config.vocab_size)
        self.tie_weights()

    def forward(self, tokens: Tensor, caches: Sequence[KeyValueCache] | None = None) -> Tensor:
        """``caches`` has one per layer of the config: ``tokens`` follow those that they have seen."""
        logits: Tensor = self.lm_head(self.model(tokens, caches))
        return logits

    def new_caches(self) -> list[KeyValueCache]:
        """Empty ones, for ``forward``."""
        return [KeyValueCache() for _ in range(self.config.num_hidden_layers)]

    def tie_weights(self) -> None:
        """Make the tied weights one parameter, if both are here. What replaces parameters of single modules undoes it."""
        table, head = self.model.embed_tokens, self.lm_head
        if self.config.tie_word_embeddings and isinstance(table, nn.Embedding) and isinstance(head, nn.Linear):
            head.weight = table.weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Llama:
        # to_empty(), to() and the like, which may make a parameter anew for each module
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.tie_weights()
        return self


def continuation(
    step: Callable[[Tensor], Tensor],
    tokens: Tensor,
    count: int,
    *,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Yield ``count`` tokens, [batch] int64 each. ``step`` takes the new ones [batch, n] → their logits [batch, n, vocab]."""
    for _ in range(count):
        with torch.no_grad():
            chosen = choose(step(tokens)[:, -1], temperature, generator)
        yield chosen
        tokens = chosen[:, None]


def choose(logits: Tensor, temperature: float, generator: torch.Generator | None = None) -> Tensor:
    """The next tokens [batch] by their logits [batch, vocab]: the likeliest at temperature 0, else drawn."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    return torch.multinomial((logits.float() / temperature).softmax(dim=-1), 1, generator=generator)[:, 0]
