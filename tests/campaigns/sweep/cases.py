"""A workload of many: one model per family of torch's layers, and every optimizer of torch.optim, each by its name.

python -m runner plan tests.campaigns.sweep.cases --case norm --gpus 2 --memory 1GB
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.training.loop import Plan, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

SAMPLES, WIDTH = 64, 8
PLAN = Plan(shard=("*",))


class Called(nn.Module):
    """Layers, and how they are called."""

    def __init__(self, call: Callable[..., Tensor], **layers: Any) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.call(self, values))
        return outputs


class Sparse(nn.Embedding):
    """All parameters of this model get sparse gradients."""

    def __init__(self) -> None:
        super().__init__(10, 3, sparse=True)

    def forward(self, values: Tensor) -> Tensor:
        return super().forward((values * 9).long()[:, 0])


def _number(value: Any) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value))


def _tied() -> nn.Module:
    model = Called(lambda m, v: m.second(m.first(v).tanh()), first=nn.Linear(8, 8), second=nn.Linear(8, 8))
    second: Any = model.second
    second.weight = model.first.weight
    return model


def _frozen() -> nn.Module:
    model = Called(lambda m, v: m.first(v), first=nn.Linear(8, 8))
    model.first.requires_grad_(requires_grad=False)  # type: ignore[operator]  # it is a module
    return model


def _fft(model: Any, values: Tensor) -> Tensor:
    product: Tensor = torch.fft.ifft(torch.fft.fft(values) * model.factor).real
    return product


def _sequence(values: Tensor) -> Tensor:
    return values.reshape(len(values), 4, 2)


def _attention(m: Any, values: Tensor) -> Tensor:
    outputs: Tensor = m.attention(v := _sequence(values), v, v, need_weights=False)[0].flatten(1)
    return outputs


def _recurrent(layer: nn.Module) -> Called:
    return Called(lambda m, v: m.layer(_sequence(v))[0][:, -1], layer=layer)


def _image(layer: nn.Module) -> Called:
    return Called(lambda m, v: m.layer(v.reshape(-1, 2, 2, 2)).flatten(1), layer=layer)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: Called(lambda m, v: m.layer(v), layer=nn.Linear(8, 8)),
    "bilinear": lambda: Called(lambda m, v: m.layer(v, v), layer=nn.Bilinear(8, 8, 8)),
    "convolution": lambda: _image(nn.Conv2d(2, 2, 3, padding=1)),
    "transposed": lambda: _image(nn.ConvTranspose2d(2, 2, 3, padding=1)),
    "channels last": lambda: _image(nn.Conv2d(2, 2, 3, padding=1)).to(memory_format=torch.channels_last),  # type: ignore[call-overload]  # as torch says
    "norm": lambda: Called(lambda m, v: m.two(m.one(v)), one=nn.LayerNorm(8), two=nn.RMSNorm(8)),
    "group norm": lambda: _image(nn.GroupNorm(2, 2)),
    "batch norm": lambda: Called(lambda m, v: m.layer(v), layer=nn.BatchNorm1d(8).eval()),
    "prelu": lambda: Called(lambda m, v: m.layer(v), layer=nn.PReLU()),
    "embedding": lambda: Called(lambda m, v: m.layer((v * 9).long()[:, 0]), layer=nn.Embedding(10, 8)),
    "sparse embedding": lambda: Called(
        lambda m, v: m.layer((v * 9).long()[:, 0]), layer=nn.Embedding(10, 8, sparse=True)
    ),
    "sparse only": Sparse,
    "embedding bag": lambda: Called(lambda m, v: m.layer((v * 9).long()), layer=nn.EmbeddingBag(10, 8)),
    "rnn": lambda: _recurrent(nn.RNN(2, 8, batch_first=True)),
    "lstm": lambda: _recurrent(nn.LSTM(2, 8, num_layers=2, batch_first=True)),
    "gru": lambda: _recurrent(nn.GRU(2, 4, bidirectional=True, batch_first=True)),
    "cell": lambda: Called(lambda m, v: m.layer(v), layer=nn.GRUCell(8, 8)),
    "attention": lambda: Called(_attention, attention=nn.MultiheadAttention(2, 2, batch_first=True)),
    "transformer": lambda: Called(
        lambda m, v: m.layer(_sequence(v)).flatten(1),
        layer=nn.TransformerEncoder(nn.TransformerEncoderLayer(2, 2, 8, 0.0, batch_first=True), 2),
    ),
    "weight norm": lambda: Called(lambda m, v: m.layer(v), layer=parametrizations.weight_norm(nn.Linear(8, 8))),
    "spectral norm": lambda: Called(
        lambda m, v: m.layer(v), layer=parametrizations.spectral_norm(nn.Linear(8, 8)).eval()
    ),
    "orthogonal": lambda: Called(lambda m, v: m.layer(v), layer=parametrizations.orthogonal(nn.Linear(8, 8))),
    "old weight norm": lambda: Called(lambda m, v: m.layer(v), layer=_warned(nn.Linear(8, 8))),
    "lists": lambda: Called(
        lambda m, v: v * m.one[0] + m.two["x"],
        one=nn.ParameterList([nn.Parameter(torch.rand(8))]),
        two=nn.ParameterDict({"x": nn.Parameter(torch.rand(8))}),
    ),
    "tied": _tied,
    "frozen": _frozen,
    "empty": lambda: Called(lambda m, v: v + m.none.sum(), none=nn.Parameter(torch.empty(0, 3))),
    "number": lambda: Called(lambda m, v: v * m.factor, factor=_number(1.5)),
    "complex": lambda: Called(_fft, factor=nn.Parameter(torch.rand(8, dtype=torch.complex64))),
    "complex number": lambda: Called(_fft, factor=_number(1.5 + 0.5j)),
    "integer": lambda: Called(
        lambda m, v: v * m.factor, factor=nn.Parameter(torch.arange(8, dtype=torch.int32), requires_grad=False)
    ),
    "lazy": lambda: Called(lambda m, v: m.layer(v), layer=nn.LazyLinear(8)),
}


def _warned(layer: nn.Module) -> nn.Module:
    """The old form of weight normalisation, of which torch says that it is old."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return weight_norm(layer)


def _optimizers() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    found: dict[str, Callable[..., torch.optim.Optimizer]] = {
        name: kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    return {name: lambda parameters, kind=kind: kind(list(parameters), lr=0.01) for name, kind in found.items()}


OPTIMIZERS = _optimizers()


@dataclass(frozen=True)
class Case:
    """A model and an optimizer, by their names."""

    model: str
    optimizer: str


CASES = {
    **{model: Case(model, "SparseAdam" if model == "sparse only" else "SGD") for model in MODELS},
    **{f"foreach {model}": Case(model, "foreach") for model in ("number", "complex", "tied")},
    **{optimizer: Case("linear", optimizer) for optimizer in OPTIMIZERS},
    **{
        f"{optimizer}, number": Case("number", optimizer)
        for optimizer in ("AdamW", "Adafactor", "Adagrad")
        if optimizer in OPTIMIZERS
    },
}


def task_of(case: Case) -> Task:
    """What is trained. Everything is drawn from one seed."""
    torch.manual_seed(0)
    model = MODELS[case.model]()
    data = TensorDataset(torch.rand(SAMPLES, WIDTH), torch.randint(3, (SAMPLES,)))
    return Task(
        model=model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: _optimizer(case, model, parameters),
        train_data=data,
        plan=PLAN,
    )


def _optimizer(case: Case, model: nn.Module, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if case.optimizer == "foreach":
        return torch.optim.AdamW(parameters, lr=0.01, foreach=True)
    if case.optimizer == "Muon":  # takes matrices only
        return torch.optim.Muon([one for one in parameters if one.dim() == 2], lr=0.01)
    return OPTIMIZERS[case.optimizer](parameters)


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    case: str = option("", "", choices=CASES)


def main(run: Run, options: Options) -> None:
    fit(run, task_of(CASES[options.case]), options)
