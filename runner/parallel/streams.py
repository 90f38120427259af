"""The random numbers that a part of a model draws, for dropout: as Megatron-LM keeps them, in streams of their own.

Ranks of a tensor-parallel group draw the same where they compute the same, and each its own where each has a shard of the
activations; pipeline stages draw different ones. The streams of a call begin with a number from torch's generator, which the loop
seeds for each step: so they follow from that generator's state, and whoever restores it gets the same numbers again.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

_OUTER = ""  # the stream of all that is outside of the model, and of its first stage where nothing is sharded

# Layers that draw in training, whatever attributes they have.
_DRAWING = nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d

# The stream in torch's generators, those that are kept, and the number that they began with: None outside of the model.
_Place = tuple[str, dict[str, list[Tensor]], int | None]


class RandomStreams:
    """The random streams of one model, or of one stage of a pipeline. One at a time is in torch's generators; the others are kept."""

    def __init__(self, model: nn.Module, device: torch.device, *, stage: int = 0) -> None:
        self._device = device
        self._replicated = f"stage {stage}" if stage else _OUTER
        self._sharded = self._replicated
        self._used, self._kept = _OUTER, dict[str, list[Tensor]]()
        self._number: int | None = None
        model.register_forward_pre_hook(self._begin, prepend=True)
        model.register_forward_hook(self._end, always_call=True)

    def follow(self, model: nn.Module, styles: Mapping[str, ParallelStyle], rank: int) -> None:
        """Draw from a stream of this tensor-parallel rank's own between layers that shard the activations and those that gather them."""
        self._sharded = f"{self._replicated} part {rank}"
        for name, style in styles.items():
            module = model.get_submodule(name)
            before, after = _sharding_before(style), _sharding_after(style)
            if before is not None:
                module.register_forward_pre_hook(functools.partial(self._use, before), prepend=True)
            module.register_forward_hook(functools.partial(self._use, after))

    def now(self) -> _Place:
        """Return the positions of the streams, except the one in torch's generators, which ``torch.utils.checkpoint`` keeps itself."""
        return self._used, dict(self._kept), self._number

    @contextmanager
    def replayed(self, earlier: _Place) -> Iterator[None]:
        """The context in which activations are computed again: with the streams as they were."""
        before = self.now()
        self._used, self._kept, self._number = earlier[0], dict(earlier[1]), earlier[2]
        try:
            yield
        finally:
            self._used, self._kept, self._number = before

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
    def _begin(self, model: nn.Module, *_: Any) -> None:
        if model.training:  # else nothing is dropped, and who draws tokens gets those of one process
            self._number = int(torch.randint(1 << 62, (), device="cpu"))
            self._take(self._replicated)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as above
    def _end(self, *_: Any) -> None:
        self._take(_OUTER)
        self._kept.clear()
        self._number = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as above
    def _use(self, is_sharded: bool | None, _: nn.Module, __: Any, outputs: Any = None) -> None:
        """Continue in the stream for what a layer takes or returns; None: as its outputs are, if they tell."""
        if is_sharded is None and hasattr(outputs, "placements"):
            is_sharded = _has_shard(outputs.placements)
        if is_sharded is not None:
            self._take(self._sharded if is_sharded else self._replicated)

    def _take(self, stream: str) -> None:
        """Put a stream into torch's generators."""
        if stream == self._used or self._number is None:
            return
        is_cuda = self._device.type == "cuda"
        self._kept[self._used] = [torch.get_rng_state(), *([torch.cuda.get_rng_state(self._device)] if is_cuda else [])]
        self._used = stream
        if stream in self._kept:
            state, *of_device = self._kept[stream]
            torch.set_rng_state(state)
            for one in of_device:
                torch.cuda.set_rng_state(one, self._device)
            return
        digest = hashlib.blake2b(f"{self._number} {stream}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        torch.default_generator.manual_seed(number)
        if is_cuda:
            torch.cuda.manual_seed(number)


def draws(model: nn.Module) -> bool:
    """Whether a module of the model shows that it draws random numbers in training: by its class, or a probability that it has."""
    return any(
        isinstance(module, _DRAWING) or any(_is_rate(name, value) for name, value in vars(module).items())
        for module in model.modules()
    )


def _is_rate(name: str, value: Any) -> bool:
    """Whether an attribute is how much is dropped, or how loud a noise is. ``p``: the probability of layers such as StochasticDepth."""
    if not isinstance(value, float):
        return False
    return 0 < value <= 1 if name == "p" else value > 0 and any(word in name.lower() for word in ("drop", "noise"))


def _sharding_before(style: Any) -> bool | None:
    """Whether a module is called with a shard of the activations; None if its style does not say, or it is a layer that draws nothing."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    if isinstance(style, ColwiseParallel | RowwiseParallel):
        return None
    style = getattr(style, "prepare_module_input", style)
    return _sharding(style, "sequence_sharding", "desired_input_layouts")


def _sharding_after(style: Any) -> bool | None:
    """Whether a module returns a shard of the activations; None if its style does not say."""
    style = getattr(style, "prepare_module_output", style)
    return _sharding(style, "sequence_sharding", "desired_output_layouts", "output_layouts")


def _sharding(style: Any, *names: str) -> bool | None:
    layouts = next((found for name in names if (found := getattr(style, name, None)) is not None), None)
    return None if layouts is None or not any(layouts) else _has_shard(layouts)


def _has_shard(placements: Any) -> bool:
    return any(one is not None and one.is_shard() for one in placements)
