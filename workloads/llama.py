"""Train a Llama-style transformer on bytes of text, with any mix of data, tensor and pipeline parallelism.

    mpirun -np 4 python -m runner workloads.llama --strategy fsdp --tp 2 --max-steps 200
    mpirun -np 4 python -m runner workloads.llama --pp 2 --pp-schedule 1f1b --micro-batches 4 --resume
    mpirun -np 2 python -m runner workloads.llama --tp 2 --generate "def "
    python -m runner workloads.llama --export llama-of-mine

The text is Python's standard library unless ``--text`` names a file. Sizes are those of Llama 2 and 3 by name, and some small
ones. Weights come and go in Hugging Face's layout (``--pretrained``, ``--export``).
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from runner.base.errors import UsageError
from runner.base.quantities import positive, positive_float
from runner.base.settings import option
from runner.parallel.state import shapes_of
from runner.parallel.task import Plan
from runner.training.checkpoint.file_errors import writing
from runner.training.checkpoint.resume import model_weights
from runner.training.loop import Task, fit, trained
from runner.training.run import Run
from runner.training.settings import Settings
from workloads.data.text import windows
from workloads.models import llama_weights
from workloads.models.llama import SIZES, Llama, LlamaConfig, continuation, flops_per_token

_ATTENTION, _MLP = "model.layers.*.self_attn", "model.layers.*.mlp"


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Options of workloads.llama."""

    epochs: int = 1
    max_steps: int | None = option(500)
    batch_size: int = 16
    lr: float = 3e-3
    clip_norm: float | None = option(1.0)
    data: str = option("stdlib", choices=("stdlib", "synthetic"))
    size: str = option("debug", "", choices=tuple(SIZES), metavar="SIZE", group="model")
    length: int = option(256, "tokens per sample; a token is a byte", parse=positive, group="model", changes=True)
    text: Path | None = option(None, "train on a text file in the place of --data", metavar="FILE", group="data")
    warmup: int = option(
        20,
        "steps in which the learning rate rises",
        parse=positive,
        metavar="STEPS",
        group="training",
        changes=True,
        advanced=True,
    )
    decay_steps: int | None = option(
        None,
        "steps after which the learning rate is at its lowest, a tenth (default: the training's steps)",
        parse=positive,
        metavar="STEPS",
        group="training",
        advanced=True,
    )
    pretrained: Path | None = option(None, "start from a model in Hugging Face's layout", metavar="DIR", group="model")
    export: Path | None = option(
        None, "write the newest checkpoint in that layout, and end", metavar="DIR", group="model"
    )
    generate: str | None = option(
        None, "continue this text with the newest checkpoint, and end", metavar="TEXT", group="model"
    )
    tokens: int = option(200, "number of tokens to generate", parse=positive, group="model", advanced=True)
    temperature: float | None = option(
        None,
        "sample tokens at this temperature (default: take the likeliest token)",
        parse=positive_float,
        metavar="T",
        group="model",
        advanced=True,
    )


def main(run: Run, options: Options) -> None:
    """Train, or generate, or export."""
    if options.export is not None:
        folder = options.export
        run.on_main(lambda: _export(options, folder))
        run.print(f"exported to {folder}")
        return
    torch.manual_seed(options.seed)
    task = _task(run, options)
    if options.generate is None:
        fit(run, task, options)
    else:
        _generate(run, task, options, options.generate)


def tensor_plan(*, sequence: bool, loss: bool) -> dict[str, ParallelStyle]:
    """How layers are sharded: columns of the first products, rows of the second.

    Args:
        sequence: norms and residuals have a part of the sequence each, in place of all of it.
        loss: the logits stay sharded by classes.
    """
    between = Shard(1) if sequence else Replicate()
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=between)
    head = ColwiseParallel(
        input_layouts=between, output_layouts=Shard(-1) if loss else Replicate(), use_local_output=not loss
    )
    styles: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "lm_head": head,
    }
    styles |= {f"{_ATTENTION}.{name}_proj": columns for name in "qkv"}
    styles |= {f"{_MLP}.{name}_proj": columns for name in ("gate", "up")}
    styles |= {f"{_ATTENTION}.o_proj": rows, f"{_MLP}.down_proj": rows}
    if sequence:
        parts, whole = (Shard(1), None, None, None), (Replicate(), None, None, None)
        norms = ("model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm")
        styles |= {name: SequenceParallel() for name in norms}
        styles |= {_ATTENTION: PrepareModuleInput(input_layouts=parts, desired_input_layouts=whole)}
        styles |= {_MLP: PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))}
    return styles


def plan(*, loss: bool = False) -> Plan:
    """Return where the model may be sharded or cut, with the logits sharded by classes or not."""
    return Plan(
        shard=("model.layers.*", "lm_head"),
        tensor=tensor_plan(sequence=False, loss=loss),
        sequence=tensor_plan(sequence=True, loss=loss),
        pipeline=("model.layers.*", "lm_head"),
        outputs="lm_head",
    )


def _task(run: Run, options: Options) -> Task:
    config = _config(run, options)
    problem: UsageError | None = None
    try:
        train_data, test_data = windows(str(options.text or options.data), options.length)
    except UsageError as error:  # on a host whose files differ
        problem = error
    run.agree(problem)
    end = options.decay_steps or _steps(run, options, len(train_data))
    return Task(
        model=lambda: Llama(config),
        loss=_loss,
        optimizer=lambda parameters: _adamw(parameters, options.lr),
        train_data=train_data,
        test_data=test_data,
        is_classification=False,
        unit="tokens",
        units_per_sample=options.length,
        flops_per_sample=flops_per_token(config, options.length) * options.length,
        loss_in=("bits/byte", 1 / math.log(2)),
        schedule=_schedule(options.warmup, end),
        settings={"end of the learning rate": f"step {end}"},
        weights=partial(llama_weights.read, options.pretrained) if options.pretrained else None,
        plan=plan(loss=options.loss_parallel),
    )


def _config(run: Run, options: Options) -> LlamaConfig:
    """The model's dimensions: of ``--pretrained``, or by ``--size``.

    Raises:
        UsageError: the degrees do not divide them, or samples are too long.
    """
    config = (
        SIZES[options.size]
        if options.pretrained is None
        else run.on_main(partial(llama_weights.read_config, options.pretrained))
    )
    problem = None
    if options.length > config.max_position_embeddings:
        problem = (
            f"--length {options.length} is more than the model's {config.max_position_embeddings} positions; take fewer"
        )
    if config.num_key_value_heads % options.tp:
        problem = (
            f"--tp {options.tp} does not divide the {config.num_key_value_heads} key-value heads of each layer; take a "
            "number that does"
        )
    if options.sequence_parallel and options.length % options.tp:
        problem = f"--sequence-parallel: --tp {options.tp} does not divide --length {options.length}; take a multiple"
    run.agree(problem)
    return config


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """AdamW as in Llama's papers; weights of norms, which have one dimension, do not decay."""
    mine = list(parameters)
    groups = [
        {"params": [one for one in mine if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in mine if one.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def _steps(run: Run, options: Options, samples: int) -> int:
    """The number of steps of the whole training."""
    steps = options.epochs * (samples // (options.batch_size * run.data_size))
    return min(steps, options.max_steps or steps)


def _schedule(warmup: int, steps: int) -> Callable[[int], float]:
    """Linear warm-up, then half a cosine down to a tenth."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    return factor


def _generate(run: Run, task: Task, options: Options, prompt: str) -> None:
    """Print the text and its continuation, as the tokens come. A token is a byte.

    Raises:
        UsageError: the text is empty, or too long for the model's positions; or there is no checkpoint.
    """
    text, positions = prompt.encode(), _config(run, options).max_position_embeddings
    if not text:
        run.agree("--generate has no text to continue; give it some, such as 'def '")
    if len(text) + options.tokens > positions:
        run.agree(
            f"--generate: {len(text)} bytes and --tokens {options.tokens} are more than the model's {positions} positions; "
            "take fewer"
        )
    # One token has no parts.
    whole = replace(options, sequence_parallel=False, loss_parallel=False, resume=options.resume or "")
    trainer = trained(run, task, whole)
    tokens = torch.tensor([list(text)], device=run.device)
    assert isinstance(trainer.model, Llama)
    caches = trainer.model.new_caches()
    generator = torch.Generator(run.device).manual_seed(options.seed)
    if run.is_main:
        print(prompt, end="", flush=True)
    new = continuation(
        lambda tokens: trainer.outputs(tokens, caches)[..., :256],  # of a larger vocabulary, too
        tokens,
        options.tokens,
        temperature=options.temperature or 0.0,
        generator=generator,
    )
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in new:
        if run.is_main:
            print(decoder.decode(bytes(token.tolist())), end="", flush=True)
    run.print(decoder.decode(b"", final=True))


def _export(options: Options, folder: Path) -> None:
    """Write the weights of a checkpoint in Hugging Face's layout. Called on rank 0.

    Raises:
        UsageError: there is no checkpoint, or it is of another size.
    """
    config = SIZES[options.size] if options.pretrained is None else llama_weights.read_config(options.pretrained)
    tensors = model_weights(options.resume_from)
    with torch.device("meta"):
        expected = shapes_of(Llama(config))
    if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise UsageError(f"the checkpoint is not of --size {options.size}", fix="say the one that it was trained with")
    with writing(folder):
        llama_weights.write(folder, config, tensors)
