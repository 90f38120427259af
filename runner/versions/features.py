"""The torch release that each feature needs, and what an older one does instead. Imports no torch.

The floors were found by running every feature with torch 2.4.1, 2.6.0, 2.9.1, 2.10.0, 2.12.1 and newer ones on CPUs (docs/site/versions.md
has the table). A floor is the oldest release that works. Those of GPUs that are newer stay until somebody has tried an older one there.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.versions.torch_build import Release, release_of, torch_build


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature that a torch older than its floor does not serve.

    Attributes:
        name: as messages and the documentation call it.
        floor: the first release that does it; with True at the end a snapshot from before that release will not do, as it might be
            wrong without a word.
        reason: what an older torch does.
        instead: what to do with an older one.
        on_gpus: the first release that may do it on GPUs, if that differs; None: as on CPUs.
    """

    name: str
    floor: Release
    reason: str
    instead: str = ""
    on_gpus: Release | None = None

    def floor_on(self, device: str) -> Release:
        """The first release for this type of device."""
        return self.floor if self.on_gpus is None or device == "cpu" else self.on_gpus

    def shortfall(self, version: str, device: str = "cpu") -> str:
        """Why a torch of this version does not do; "" if it does, or may on this type of device."""
        floor = self.floor_on(device)
        if release_of(version) >= floor:
            return ""
        return f"needs torch {number_of(floor)} or newer, and {f'this is {version}' if version else 'there is none'} ({self.reason})"


RUNNER = "the runner"
UNTRIED = "older ones were not tried"  # why a release is refused that may do

# In the order of their floors. A workload or a tool that needs more than the runner stands under its name.
FEATURES = {
    RUNNER: Feature(name=RUNNER, floor=(2, 4), reason=UNTRIED),
    "workloads.llama": Feature(
        name="workloads.llama",
        floor=(2, 5),
        reason="its attention cannot share keys among queries",
        instead="train another workload",
    ),
    "selective": Feature(
        name="--activation-checkpointing selective",
        floor=(2, 5),
        reason="it recomputes all or nothing",
        instead="take --activation-checkpointing full",
    ),
    "plan": Feature(name="plan", floor=(2, 6), reason="it has no public fully_shard, by which plan shards a model"),
    "tp": Feature(
        name="--tp",
        floor=(2, 6),
        reason="it lacks what shards a layer together with the rest",
        instead="take --strategy ddp or zero1",
    ),
    "compare": Feature(
        name="compare", floor=(2, 6), reason="compiled parts of a model would hide what they send", instead="take bench"
    ),
    "recorder": Feature(
        name="--hang-timeout in every wait of a script",
        floor=(2, 9),
        reason="it does not record gloo's collectives, so only a rank in a function of torch.distributed or in a backward pass is "
        "noticed, and the report does not say which collective it is",
    ),
    "fsdp": Feature(
        name="--strategy fsdp, --replicate",
        floor=(2, 9),
        reason="its fully_shard does not run on CPUs",
        instead="take --strategy zero1",
        on_gpus=(2, 8),
    ),
    "replicas": Feature(
        name="--tp or --pp with data parallelism or a smaller --precision",
        floor=(2, 9),
        reason="fully_shard does that, which does not run on CPUs",
        instead="start as many ranks as --tp times --pp, and leave --precision out",
        on_gpus=(2, 8),
    ),
    "plan of attention": Feature(
        name="plan of attention", floor=(2, 9), reason="it follows another kernel than a GPU's, which keeps more"
    ),
    "complex": Feature(
        name="--strategy ddp or zero1 with complex numbers",
        floor=(2, 9),
        reason="DDP sends the model when it begins, and gloo takes none",
        instead="make them of pairs of real ones, by torch.view_as_complex() in forward()",
        on_gpus=(2, 4),
    ),
    "frozen": Feature(
        name="--tp with frozen weights",
        floor=(2, 9),
        reason=UNTRIED,
        instead="train all weights of the sharded layers, or take --strategy ddp",
        on_gpus=(2, 11, True),
    ),
    "sequence-parallel": Feature(
        name="--sequence-parallel", floor=(2, 9), reason=UNTRIED, instead="leave it out", on_gpus=(2, 12, True)
    ),
    "order": Feature(
        name="a layout whose ranks do not ascend",
        floor=(2, 9),
        reason=UNTRIED,
        instead="map ranks to hosts by blocks, or take smaller degrees",
        on_gpus=(2, 12),
    ),
    "idle stage": Feature(
        name="--pp with a first stage that trains nothing",
        floor=(2, 9),
        reason=UNTRIED,
        instead="take fewer stages, or train something in the first",
        on_gpus=(2, 13),
    ),
    "mpi4py": Feature(name="--backend mpi4py", floor=(2, 9), reason=UNTRIED, instead="say --backend gloo"),
    "pp": Feature(
        name="--pp",
        floor=(2, 9),
        reason="by gloo its pipelines hang or abort",
        instead="take --strategy zero1",
        on_gpus=(2, 6),
    ),
    "v-schedules": Feature(
        name="--pp-schedule zbv, dualpipev",
        floor=(2, 10, True),
        reason="its ScheduleDualPipeV trains wrong weights, without a word, and its ScheduleZBVZeroBubble aborts by gloo",
        instead="take --pp-schedule interleaved-zero-bubble",
        on_gpus=(2, 6),
    ),
    "uneven": Feature(
        name="--tp in shards of uneven size",
        floor=(2, 10, True),
        reason="its DTensor.full_tensor() puts such shards together in the wrong order, without a word",
        instead="take degrees by which the sizes of the sharded layers can be divided, or --strategy ddp",
        on_gpus=(2, 12, True),
    ),
    "plan of sharded layers": Feature(
        name="plan of --tp",
        floor=(2, 10),
        reason="it does not notice that a run would be refused, as with torch.optim.Adafactor",
        instead="say --tp 1",
    ),
}


@raised_on_all_ranks()
def need(*features: str, version: str | None = None, device: str = "cpu") -> None:
    """See that torch is new enough for all of these. Names without a row in ``FEATURES`` need what the runner needs.

    Args:
        version: of torch; None: the one that is installed.
        device: the type on which the model computes.

    Raises:
        UsageError: it is not; the message says what it needs and what to do instead.
    """
    version = torch_build().version if version is None else version
    for feature in (FEATURES[name] for name in features if name in FEATURES):
        if lack := feature.shortfall(version, device):
            newer = f"pip install 'torch>={number_of(feature.floor_on(device))}'"
            raise UsageError(f"{feature.name} {lack}", fix=" or ".join(filter(None, [feature.instead, newer])))


def untried(*features: str, version: str, device: str) -> list[Feature]:
    """Return the features that are allowed on this type of device only because nobody has tried them there."""
    found = (FEATURES[name] for name in features if name in FEATURES)
    return [feature for feature in found if feature.shortfall(version) and not feature.shortfall(version, device)]


def lacking(version: str) -> list[Feature]:
    """Return the features that a torch of this version does not serve on CPUs."""
    return [feature for feature in FEATURES.values() if feature.shortfall(version)]


def number_of(release: Release) -> str:
    """Return a release as people write it: 2.12."""
    return ".".join(map(str, release[:2]))
