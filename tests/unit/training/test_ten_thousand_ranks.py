"""What a rank receives, opens and keeps in a job of 10,000 ranks: no more than in one of ten, but some bytes per rank.

One process is first rank 0 and then another rank. What rank 0 sends is kept for that one; in reductions all ranks have the same.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from runner.backends.collective_errors import agree
from runner.parallel import same_start
from runner.parallel.mesh import Degrees, Layout
from runner.training.checkpoint import checkpoint_folder, shards
from runner.training.checkpoint.checkpoint_folder import Position, Saved, write_manifest
from runner.training.checkpoint.resume import restore
from runner.training.checkpoint.shard_index import path_of
from runner.training.data.feed import load_states, states_of
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.step_metrics import StepMetrics
from runner.versions.torch_private import FakeStore

RANKS, OTHER = 10_000, 5_000
SMALL = 100_000  # bytes: eight for each rank are not counted as growing
CPU = torch.device("cpu")


class Exchange:
    """The collectives of one rank, which count the bytes that it receives."""

    def __init__(self, size: int, rank: int, sent: list[bytes]) -> None:
        self.size, self.rank, self.sent, self.received = size, rank, sent, 0

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        self.received += tensor.nbytes
        if op == dist.ReduceOp.SUM:
            tensor *= self.size

    def broadcast_object_list(self, values: list[Any], src: int = 0, group: Any = None, device: Any = None) -> None:
        assert src == 0
        if self.rank == 0:
            self.sent.append(pickle.dumps(values))
        else:
            self.received += len(self.sent[0])
            values[:] = pickle.loads(self.sent.pop(0))

    def scatter_object_list(self, found: list[Any], values: list[Any] | None, src: int = 0, group: Any = None) -> None:
        if self.rank == 0:
            assert values is not None
            assert len(values) == self.size
            self.sent.append(pickle.dumps([values[OTHER]]))
            found[0] = values[0]
        else:
            assert values is None
            self.broadcast_object_list(found)

    def gather_object(self, value: Any, found: list[Any] | None, dst: int = 0, group: Any = None) -> None:
        self.received += 8 * self.size  # torch exchanges the sizes
        if found is not None:
            found[:] = [value] * self.size

    def all_gather_object(self, found: list[Any], value: Any, group: Any = None) -> None:
        self.received += len(pickle.dumps(value)) * self.size
        found[:] = [value] * self.size


@pytest.fixture
def part_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], Exchange]]:
    """Makes this process a rank of a job; each call of the next one. What rank 0 has sent is for the others."""
    sent: list[bytes] = []

    def become(size: int, rank: int) -> Exchange:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)  # type: ignore[no-untyped-call]
        exchange = Exchange(size, rank, sent)
        for name in [name for name in dir(Exchange) if not name.startswith("_")]:
            monkeypatch.setattr(dist, name, getattr(exchange, name))
        return exchange

    yield become
    if dist.is_initialized():
        dist.destroy_process_group()


def a_run(size: int, rank: int) -> Run:
    host = SimpleNamespace(host="n1")
    job: Any = SimpleNamespace(
        rank=rank,
        size=size,
        placement=SimpleNamespace(torch_device="cpu", is_crowded=False),
        topology=SimpleNamespace(records=[host] * size),
        board=MagicMock(),
    )
    run = Run(job=job, workload="scale", layout=Layout(Degrees(replicate=size), tuple(range(size))))
    vars(run)["mesh"] = SimpleNamespace(get_group=lambda _: None)
    return run


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)))


STARTS = {
    "a model begins alike": lambda: same_start.begin_alike(net(), CPU),
    "structures are compared": lambda: same_start.check_structure(net()),
    "digests are compared": lambda: same_start.check_digests([("a", torch.tensor(3)), ("b", None)], "weights", ""),
    "nobody has a problem": lambda: agree(None),
}


@pytest.mark.parametrize("what", STARTS)
def test_a_start_exchanges_as_much_as_with_ten_ranks(what: str, part_of: Callable[[int, int], Exchange]) -> None:
    few, many = part_of(10, 5), None
    STARTS[what]()
    many = part_of(RANKS, OTHER)
    STARTS[what]()
    assert 0 < many.received == few.received < SMALL


def test_metrics_exchange_as_much_as_with_ten_ranks(part_of: Callable[[int, int], Exchange]) -> None:
    def received(size: int, rank: int) -> int:
        exchange, run = part_of(size, rank), a_run(size, rank)
        task = SimpleNamespace(units_per_sample=1, flops_per_sample=None)
        trainer = MagicMock(task=task, weight=1.0, ready=None)
        metrics = StepMetrics(run, Settings(), trainer, Position(step=1), None, MagicMock(), MagicMock(), None, ())
        pace = metrics._pace
        for _ in range(20):
            pace.begin()
            pace.end(pace._began + 0.02)
        metrics.note({"accuracy": 0.5, "norm": 2.0})
        metrics.add(torch.tensor(0.25), 32)
        (record,) = metrics.gather()
        assert (record.loss, record.more) == (0.25, {"accuracy": 0.5, "norm": 2.0})
        assert pace.slowest is not None
        assert pace.slowest[0] == rank
        assert pace.line() is None
        return exchange.received

    assert received(RANKS, OTHER) == received(10, 5) < SMALL


def write_shards(folder: Path) -> None:
    """A checkpoint of one row of two tensors per rank, and each rank's place in the data."""
    sums = {}
    for rank in range(RANKS):
        entries = {
            name: {"dtype": "F32", "shape": [1, 2], "data_offsets": [8 * place, 8 * place + 8]}
            for place, name in enumerate(("model.w", "model.v"))
        }
        where = json.dumps({name: {"saved_offsets": [rank, 0]} for name in entries})
        header = json.dumps({"__metadata__": {"DCP_SHARDING_INFO": where}, **entries}).encode()
        values = torch.tensor([rank, 1.0, rank, 2.0]).numpy().tobytes()
        path, content = path_of(folder, rank), len(header).to_bytes(8, "little") + header + values
        path.write_bytes(content)
        sums[path.name] = [len(content), sha256(content).hexdigest()]
    saved = Saved(
        path=folder,
        workload="scale",
        position=Position(step=3, samples=7),
        settings={},
        groups=[],
        data=[[rank, {}] for rank in range(RANKS)],
    )
    write_manifest(folder, saved, sums)


@pytest.mark.needs("tp")
def test_a_resume_opens_only_files_with_what_the_rank_has(
    part_of: Callable[[int, int], Exchange], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch.distributed.tensor import DTensor, Shard

    folder = tmp_path / "step-3"
    folder.mkdir()
    write_shards(folder)
    opened: list[Path] = []
    checked: list[str] = []
    open_it, check = shards.opened, checkpoint_folder.check_files

    def see(path: Path, sums: Any) -> None:
        checked.extend(sums)
        check(path, sums)

    monkeypatch.setattr(shards, "opened", lambda path: opened.append(path) or open_it(path))
    monkeypatch.setattr(checkpoint_folder, "check_files", see)
    for rank in (0, OTHER):
        opened.clear(), checked.clear()
        exchange, run = part_of(RANKS, rank), a_run(RANKS, rank)
        mesh = init_device_mesh("cpu", (RANKS,))
        local = {name: torch.zeros(1, 2) for name in ("model.w", "model.v")}
        room = {name: DTensor.from_local(one, mesh, [Shard(0)], run_check=False) for name, one in local.items()}
        trainer: Any = SimpleNamespace(
            is_sharded=True,
            shapes=lambda: {"w": (RANKS, 2), "v": (RANKS, 2)},
            state=lambda: SimpleNamespace(groups=[]),
            optimizer=None,
            room=lambda shapes, here, room=room: room,
            load=lambda state: None,
        )
        options: Any = SimpleNamespace(resume=str(folder), resume_from=folder)
        saved, _ = restore(run, trainer, options, None)
        assert opened == [path_of(folder, rank)]
        assert checked == [path_of(folder, rank).name]
        assert local["model.w"].tolist() == [[rank, 1]]
        assert local["model.v"].tolist() == [[rank, 2]]
        assert saved is not None
        feed: Any = SimpleNamespace(is_stateful=True, is_shared=False)
        load_states(run, feed, saved.data)
        assert feed.resumed == rank
        assert exchange.received < SMALL
    assert saved.data is None


def test_places_in_the_data_are_gathered_on_rank_0(part_of: Callable[[int, int], Exchange]) -> None:
    feed: Any = SimpleNamespace(is_stateful=True, is_shared=False, state=list(range(100)))
    exchange = part_of(RANKS, OTHER)
    assert states_of(a_run(RANKS, OTHER), feed) is None
    assert exchange.received < SMALL
    part_of(RANKS, 0)
    assert states_of(a_run(RANKS, 0), feed) == [[list(range(100)), {}]] * RANKS
