"""A script with a loop of its own, and with what --wrong asks for that is wrong."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

import runner


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 2
    batch_size: int = 8
    wrong: str = ""
    lr: float = 0.1
    schedule: bool = False
    stop_at: int | None = runner.option(None, "stop after this step")


class Points(Dataset[dict[str, Any]]):
    """Batches of them are dicts, with texts among the tensors."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        return {"name": f"point {index}", "point": torch.randn(8, generator=generator), "label": index % 3}


def collate(points: list[dict[str, Any]]) -> dict[str, Any]:
    return {**default_collate(points), "count": len(points)}


class Seen:
    """State of the script's own: how often it has seen each label."""

    def __init__(self) -> None:
        self.labels: Counter[int] = Counter()
        self.grows_odd = False

    def state_dict(self) -> dict[str, Any]:
        is_odd = self.grows_odd and self.labels.total() > 40
        return {"labels": dict(self.labels), "odd": object() if is_odd else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.labels = Counter(state["labels"])


def main() -> None:
    options = Options.from_args()
    if options.wrong == "own group":
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    run = runner.start(options)
    if options.wrong == "twice":
        runner.start()
    torch.manual_seed(options.seed)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    if options.wrong == "nothing":
        next(run.batches(Points()))
    if options.wrong == "compiled":
        net = torch.compile(net, backend="eager")  # type: ignore[assignment]
    model = run.prepare(net, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr))
    if options.wrong == "late":
        critic = run.prepare(nn.Linear(8, 1), optimizer=torch.optim.SGD, name="critic")
    if options.wrong == "no state":
        run.register(own=42)  # type: ignore[arg-type]  # is refused
    if options.wrong == "outside":
        run.log(loss=1.0)
    seen = Seen()
    seen.grows_odd = options.wrong == "odd state"
    run.register(seen=seen)
    if options.schedule:
        schedule = torch.optim.lr_scheduler.LambdaLR(model.optimizer, lambda step: min(1.0, (step + 1) / 2))
        run.register(schedule=schedule)
    for batch in run.batches(Points(), collate_fn=collate):
        if options.wrong == "no loss":
            continue
        if options.wrong == "step":
            model.step()
        if options.wrong == "late":
            time.sleep(0.06 * run.rank)
            critic.backward(critic(batch["point"]).square().mean())
            critic.step()
        outputs = model(batch["point"])
        loss = functional.cross_entropy(outputs, batch["label"])
        if options.wrong == "past" and run.step:
            loss = functional.cross_entropy(model.module(batch["point"]), batch["label"])
            model.backward(functional.cross_entropy(outputs, batch["label"]))
        if options.wrong == "nan" and run.rank:
            loss = loss * torch.nan
        model.backward(outputs if options.wrong == "loss" else loss)
        if options.wrong != "forgotten":
            model.step()
        if options.wrong == "step name":
            run.log(step=1.0)
        if options.schedule:
            schedule.step()
        if options.wrong == "alone" and run.is_main:
            run.sum(*range(9))
        if options.wrong == "text":
            run.log(right="all")  # type: ignore[arg-type]  # is refused
        if options.wrong == "eval":
            model.eval()  # type: ignore[attr-defined]  # a prepared model has none
        if run.step or not (options.wrong == "names" and run.rank):
            run.log(loss=loss, right=(outputs.argmax(1) == batch["label"]).double().mean())
        if options.wrong == "slow" and run.step == 5:
            for _ in range(6):
                time.sleep(1)
                model.backward(functional.cross_entropy(model(batch["point"]), batch["label"]))
            model.step()
            with model.evaluating() as predict:
                for _ in range(6):
                    time.sleep(1)
                    predict(batch["point"])
        if options.wrong == "break" and run.step == 5:
            break
        seen.labels.update(batch["label"].tolist())
        assert len(batch["name"]) == len(batch["label"]) == batch["count"]
        if options.wrong == "killed" and run.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        if options.wrong == "sleeps" and run.step == 5 and run.rank == 1:
            time.sleep(600)
        if options.wrong == "raises" and run.step == 3 and run.rank == run.size - 1:
            raise ValueError("sample 4711 has no label")
        if options.stop_at == run.step + 1 and run.rank == run.size - 1:
            run.stop()
    print(f"rank {run.rank}: {run.step} steps, {run.epoch} epochs, {seen.labels.total()} labels")


if __name__ == "__main__":
    main()
