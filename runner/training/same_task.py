"""Whether all ranks are given the same training: it is compared once, before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch.distributed as dist

from runner.backends.comparing import bounds, number_of
from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.base.plain_values import plain
from runner.parallel.batch_forms import parts_of, with_tensors
from runner.parallel.task import Task
from runner.rendezvous.records.topology import ranks_text
from runner.training.data.feeds import order_of, reading_of, with_batch_of
from runner.training.data.samples import Look, look_at, ranks_unlike_first
from runner.training.data.source import source_of, source_of_test
from runner.training.run import Run
from runner.training.settings import StepSettings

# Ranks may differ in these options: they concern the rank itself, or rank 0's files.
_OWN = {"workers", "prefetch", "checkpoint_dir", "data_dir", "metrics", "logger", "weights", "resume", "given"}
_FIX = "give all ranks the same; the runner divides the data among them"
_SEEDED = "torch.manual_seed(options.seed) before data is drawn or split makes it the same"
_LONGEST, _VALUES, _DIFFERENCES = 60, 4, 3  # characters of a value, and how many are shown

Facts = dict[str, str]


@raised_on_all_ranks()
def check_task(run: Run, task: Task, options: StepSettings) -> Mapping[str, Look]:
    """Check that the data can be trained on, and that all ranks train the same. Collective: some numbers are reduced.

    Compared are lengths of the data and of an epoch, options, settings and plan of the task, and some samples, if they read the same
    twice on all ranks.

    Returns:
        A look at the ``training`` data, and at the ``test`` data if there is any.

    Raises:
        UsageError: the data has a form that cannot be trained on, or the ranks differ.
    """
    train = source_of(task)
    test = None if task.test_data is None else source_of_test(task)
    if options.pp > 1 and task.batch_loss is None and train.is_stream:  # else prepare() has had samples
        raise UsageError(
            f"--pp {options.pp}: layers are measured on a sample of the data, and {type(train.data).__name__} is a stream, which only "
            "the training may read",
            fix="give a Dataset with __getitem__ and __len__; or write your own loop, with prepare(…, data=a few samples)",
        )
    data = {"training": (train, options, reading_of(train, options, run.device, test))}
    if test is not None:
        own = with_batch_of(test, replace(options, given={}))
        data["test"] = test, own, reading_of(test, options, run.device, train)
    # A loss of (outputs, targets) takes pairs.
    check = with_tensors if task.batch_loss is not None else parts_of
    looks: dict[str, Look] = {}
    steps: int | None = None  # of an epoch
    failed: RunnerError | None = None  # of this rank, as where a file is missing on a host
    try:
        for name, (source, own, reading) in data.items():
            looks[name] = Look()
            if not source.is_stream:
                order = order_of(source, run.data_rank, run.data_size, own)
                keys = order.first(min(2, own.batch_size))
                looks[name] = look_at(source, keys, reading, sketch=run.size > 1, check=check)
                steps = order.steps(0) if name == "training" else steps
    except RunnerError as error:
        failed = error
    problem = failed or next((look.problem for look in looks.values() if look.problem), None)
    facts = _facts(task, options, {name: source.length for name, (source, _, _) in data.items()}, steps)
    unknown = [int(name not in looks or looks[name].sketch is None) for name in ("training", "test")]
    (least, most), (_, has_problem), *on_any = bounds([number_of(repr(facts)), int(problem is not None), *unknown])
    if least != most or has_problem:
        everyone: list[Any] = [None] * run.size
        dist.all_gather_object(everyone, (facts, problem))
        if first := next((one for _, one in everyone if one is not None), None):
            raise first
        raise _refusal(_differences([one for one, _ in everyone])[:_DIFFERENCES], _FIX)
    for name, (_, is_unknown) in zip(looks, on_any, strict=False):
        sketch = looks[name].sketch
        if sketch is not None and not is_unknown and (ranks := ranks_unlike_first(run, sketch)):
            differing = f"samples of the {name} data are others on {ranks_text(ranks)} than on rank 0"
            raise _refusal([differing], f"{_FIX}, and {_SEEDED}")
    return looks


def _facts(task: Task, options: StepSettings, lengths: Mapping[str, int | None], steps: int | None) -> Facts:
    """Return the facts that must be equal on all ranks, by name. ``make_trainer`` compares the models."""
    found: Facts = {}
    for name in ("training", "test"):
        length = lengths.get(name, "no")
        found[f"the {name} data has"] = "no length" if length is None else f"{length} samples"
    found["an epoch has"] = f"{steps} steps"
    for name in (one.name for one in fields(options) if one.name not in _OWN):
        found[f"the option {name} is"] = repr(getattr(options, name))
    for name in ("is_classification", "units_per_sample", "warmup", "evaluate_every", "keep_best"):
        found[f"the task's {name} is"] = repr(getattr(task, name))
    found["the task has"] = "a schedule" if task.schedule is not None else "no schedule"
    found["the task's metrics are"] = ", ".join(task.metrics) or "none"
    found |= {f"the task's setting {name!r} is": repr(plain(value)) for name, value in task.settings.items()}
    plan = task.plan
    styles = [(name, type(one).__name__) for name, one in [*plan.tensor.items(), *plan.sequence.items()]]
    found["the plan is"] = f"{plan.shard} {plan.pipeline} {plan.outputs} {styles}"
    return found


def _differences(everyone: list[Facts]) -> list[str]:
    """Describe what differs, with the values and their ranks."""
    found = []
    for name in dict.fromkeys(name for facts in everyone for name in facts):
        ranks: dict[str, list[int]] = {}
        for rank, facts in enumerate(everyone):
            ranks.setdefault(facts.get(name, "nothing"), []).append(rank)
        if len(ranks) > 1:
            texts = [f"{value[:_LONGEST]} on {ranks_text(on)}" for value, on in ranks.items()]
            found.append(f"{name} {', '.join(texts[:_VALUES])}{', …' if len(texts) > _VALUES else ''}")
    return found


def _refusal(differences: list[str], fix: str) -> UsageError:
    return UsageError(f"the ranks do not train the same: {'; '.join(differences)}", fix=fix)
