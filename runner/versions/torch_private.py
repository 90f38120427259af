"""All uses of torch's private names, and what could take their place. Imports no torch at load.

With each new torch, read this file first. Unless an entry says otherwise, it has worked with torch 2.4.1 to 2.14, as far as those have
the feature that needs it (``features.py``; docs/site/versions.md has what was run). A function has an underscored name of torch in its body.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

from runner.versions.torch_build import release_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch._C._distributed_c10d import Backend as Backend
    from torch._C._distributed_c10d import DebugLevel as DebugLevel
    from torch._C._distributed_c10d import PrefixStore as PrefixStore
    from torch._C._distributed_c10d import Store as Store
    from torch._C._distributed_c10d import TCPStore as TCPStore
    from torch._C._distributed_c10d import get_debug_level as get_debug_level
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.distributed import ProcessGroup
    from torch.distributed._functional_collectives import AsyncCollectiveTensor as AsyncCollectiveTensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.testing._internal.distributed.fake_pg import FakeStore as FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import tree_leaves as tree_leaves

# The module of what torch.distributed is made of.
C10D = "torch._C._distributed_c10d"

# Names that are imported from here as from their modules, when they are used.
_HOMES = {
    # torch.distributed has them too, but does not export them for type checkers. Instead: torch.distributed's, once it does.
    "DebugLevel": C10D,
    "PrefixStore": C10D,
    "Store": C10D,
    "TCPStore": C10D,
    "get_debug_level": C10D,
    # What a backend in Python derives from (2.14); torch.distributed.Backend is another class. Instead: none.
    "Backend": C10D,
    # What a functional collective returns until somebody waits for it. Instead: none.
    "AsyncCollectiveTensor": "torch.distributed._functional_collectives",
    # Sees every operation, to count the memory that it takes. Documented, and in no public module. Instead: none.
    "TorchDispatchMode": "torch.utils._python_dispatch",
    # Tensors without memory, by which plan follows a step. Documented, and in no public module. Instead: none.
    "FakeTensorMode": "torch._subclasses.fake_tensor",
    # The tensors in an operation's results. Instead: none.
    "tree_leaves": "torch.utils._pytree",
    # Its module registers the backend "fake", which exchanges nothing. Torch's own tests use it. Instead: none.
    "FakeStore": "torch.testing._internal.distributed.fake_pg",
}

# The compiler: imported ahead, as DDP's constructor does that too, and looked for where it need not be asked. Instead: torch.compiler,
# which imports it when it is used.
COMPILER = "torch._dynamo"

# The logger of remarks on how DTensors are gathered, and the placement that one of them is about. Instead: none.
REDISTRIBUTION = "torch.distributed.tensor._redistribute"
NORM_PLACEMENT = "_NormPartial"

# The names of a process group's operations before 2.13, by those of today. Instead: today's, with newer releases.
OLDER_OPERATIONS = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}

# Methods of torch's classes that a class derived from one replaces, where it stands: a process group's when it is given its name (the
# MPI group has another beside it), a module's by which to(), half() and to_empty() change its tensors (Llama ties weights anew), a
# pipeline stage's by which it exchanges messages with its neighbours, and learns its shapes, ahead of the first step.
REPLACED = ("_set_group_name", "_apply", "_get_init_p2p_neighbors_ops", "_prepare_forward_infra")

_RECORDERS = "_dump_fr_trace_json", "_dump_nccl_trace_json"  # of gloo (2.9), of NCCL


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def recorded_calls() -> Iterator[dict[str, Any]]:
    """Return the calls in torch's flight recorders, the oldest of each first. Instead: none in the process itself."""
    c10d = import_module(C10D)
    for recorder in _RECORDERS:
        dump = getattr(c10d, recorder, None)
        yield from json.loads(dump(True)).get("entries", []) if dump is not None else []


def process_groups() -> list[dict[str, Any]]:
    """This rank's process groups: pg_name, pg_desc, ranks. torch.distributed is imported. Instead: none that lists them."""
    groups: list[dict[str, Any]] = sys.modules["torch.distributed.distributed_c10d"]._world.pg_config_info
    return groups


def rates_of(own: Iterable[Any]) -> Iterator[list[Any]]:
    """The lists of rates, one for each group of parameters, of torch's schedulers, also of those that others are made of. Instead: none."""
    from torch.optim.lr_scheduler import LRScheduler

    for one in own:
        if isinstance(one, LRScheduler):
            yield from (getattr(one, name, []) for name in ("base_lrs", "max_lrs", "_last_lr"))
            yield from rates_of(getattr(one, "_schedulers", ()))


def rendezvous_handlers() -> dict[str, Callable[..., Iterator[Any]]]:
    """Return the makers of a store for ``init_process_group()``, by URL scheme; the dict may be changed.

    torch.distributed.rendezvous is imported. Instead: register_rendezvous_handler(), which replaces none that is there.
    """
    handlers: dict[str, Callable[..., Iterator[Any]]] = vars(sys.modules["torch.distributed.rendezvous"])[
        "_rendezvous_handlers"
    ]
    return handlers


def decide_who_serves(is_served: Callable[[], bool]) -> None:
    """Have a function say whether ``init_process_group()`` only joins a store. torch.distributed.rendezvous is imported. Instead: a variable."""
    vars(sys.modules["torch.distributed.rendezvous"])["_torchelastic_use_agent_store"] = is_served


def has_devices(group: ProcessGroup) -> bool:
    """Whether a backend is registered in the group (2.14). Instead: none."""
    return bool(cast("Any", group)._device_types)


def make_groups_by(make: Callable[..., Any]) -> None:
    """Have a function make process groups. Its first argument is torch's own maker, the others are that one's. Instead: none.

    torch.distributed is imported.
    """
    module: Any = sys.modules["torch.distributed.distributed_c10d"]
    module._new_process_group_helper = partial(make, module._new_process_group_helper)


def call_backend(group: Any, name: str) -> None:
    """Have torch.distributed call a group's backend by this name. torch.distributed is imported. Instead: none."""
    module: Any = sys.modules["torch.distributed.distributed_c10d"]
    world, backend = module._world, module.Backend(name)
    if group in world.pg_map:  # this rank is a member
        world.pg_map[group] = backend, world.pg_map[group][1]
        world.pg_backend_config[group] = str(module.BackendConfig(backend))


def takes_backend_in_python() -> bool:
    """Whether a class in Python may derive from torch's ``Backend`` (2.14). Instead: none."""
    return hasattr(import_module("torch.distributed.distributed_c10d")._DistributedBackendOptions(), "process_group")


def factor_of(operation: Any) -> Any:
    """Return the factor of a ``ReduceOp.PREMUL_SUM``. Instead: ``factor``, which torch has from 2.14 on."""
    return operation.factor if hasattr(operation, "factor") else operation.__getstate__()[1]


def options_class(name: str) -> Any:
    """Return the class of an operation's options. Instead: none for most of them."""
    return getattr(import_module(C10D), name)


def register_backend(group: ProcessGroup, device: str, backend: Any) -> None:
    """Let the group use a backend in Python for this type of device (2.14). Instead: none for a group that is in Python itself."""
    import torch

    group._register_backend(torch.device(device), group.BackendType.CUSTOM, backend)


def default_to_python(group: ProcessGroup) -> None:
    """Make the group's backend in Python its default one (2.14). Instead: as above."""
    group._set_default_backend(group.BackendType.CUSTOM)


def name_group(group: ProcessGroup, name: Any) -> None:
    """Give a group its name (2.14). Instead: as above."""
    group._set_group_name(name)


def is_dispatch_watched() -> bool:
    """Whether a dispatch mode, or a graph that is being compiled, has to see the calls (2.14). Instead: none."""
    import torch  # (nothing more, as each call of a collective comes here)

    core: Any = torch._C
    return bool(core._len_torch_dispatch_stack() or core._distributed_c10d._allow_inflight_collective_as_graph_input())


def is_profiling() -> bool:
    """Whether a profiler is active: this thread's, or one of all threads. Instead: none that knows of both."""
    import torch

    return bool(torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled)


def begin_record(name: str, tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Begin a profiler's record. Returns what ends it, in any thread.

    2.11: before it a record that ends in another thread is lost, unless a future ends it.
    Instead: torch.profiler.record_function(), which ends in its own thread and has no shapes.
    """
    import torch

    record = torch._C._autograd._record_function_with_args_enter(name, *tensors)
    if release_of(torch.__version__) >= (2, 11):
        return partial(torch._C._autograd._record_function_with_args_exit, record)
    over = torch.futures.Future[None]()
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, over)
    return partial(over.set_result, None)


def profiler_settings(**settings: Any) -> Any:
    """Return a value for ``torch.profiler.profile(experimental_config=)``. Instead: none."""
    import torch

    return torch._C._profiler._ExperimentalConfig(**settings)


def norms_of(tensors: list[Tensor], order: float = 2.0) -> list[Tensor]:
    """The norm of each, in one call. Instead: vector_norm() for each."""
    import torch

    return list(torch._foreach_norm(tensors, order))


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each tensor into its place, in one call. Instead: copy_() for each, for which the dispatcher takes longer."""
    import torch

    torch._foreach_copy_(targets, sources)


def values_of(sparse: Tensor) -> Tensor:
    """Return a sparse tensor's values as they are. Instead: values(), which refuses a tensor that is not coalesced."""
    return sparse._values()


def change_tensors(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change all tensors of a model, as to() and half() do. Instead: to(), which makes complex numbers real."""
    own: Any = model  # torch leaves the method untyped
    own._apply(change)


def copy_of(module: nn.Module) -> nn.Module:
    """A module with all that this one has, and a list of children of its own. Instead: copy.copy(), which one with parametrizations refuses."""
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = {**module.__dict__, "_modules": dict(module._modules), "_compiled_call_impl": None}
    if isinstance(own := module.__dict__.get("forward"), MethodType) and own.__self__ is module:
        copy.forward = MethodType(own.__func__, copy)
    return copy


def replace_child(module: nn.Module, name: str, child: nn.Module) -> None:
    """Put a module in another's place. Instead: set_submodule(), which not all releases have."""
    module._modules[name] = child


def was_compiled(model: nn.Module) -> bool:
    """Whether compile() was called on it. Instead: none."""
    return getattr(model, "_compiled_call_impl", None) is not None


def compiled_in_place(model: nn.Module) -> nn.Module:
    """The model without torch.compile()'s wrappers, which change names: what they wrapped has its ``forward`` compiled as they would.

    Instead: compile(), which knows no options of the wrapper's, and compiles nothing of a module that fully_shard has hooks in (2.14).
    """

    def unwrapped(module: Any) -> Any:
        if module is None or "_orig_mod" not in module._modules:
            return module
        inner: Any = module._modules["_orig_mod"]
        own = vars(inner).get("forward")
        # A method, so that it belongs to the copy of a module that is copied.
        inner.forward = (
            MethodType(module.dynamo_ctx(type(inner).forward), inner) if own is None else module.dynamo_ctx(own)
        )
        return inner

    for module in [*model.modules()]:
        if "_orig_mod" not in module._modules:
            module._modules.update({name: unwrapped(child) for name, child in module._modules.items()})
    return cast("nn.Module", unwrapped(model))


def check_finished(model: DistributedDataParallel) -> None:
    """Have DDP look whether it has all gradients of this step. Instead: none before the next step.

    Raises:
        RuntimeError: it has not.
    """
    model._check_reducer_finalized()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def multiply(tensors: list[Tensor], factor: float) -> None:
    """Multiply tensors in place, many in one call. Instead: one by one."""
    import torch

    torch._foreach_mul_(tensors, factor)


def overflows(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> dict[torch.device, Tensor]:
    """Return, per device, whether the scaler has found a gradient that is not finite; the dict may be changed. Instead: none."""
    flags: Any = scaler._found_inf_per_device(optimizer)
    return cast("dict[torch.device, Tensor]", flags)


def flatten(mesh: DeviceMesh, name: str) -> None:
    """Give the mesh's dimensions together a name, by which its root finds them. Instead: none that a root finds."""
    mesh._flatten(name)


def identity_of(storage: torch.UntypedStorage) -> int:
    """A number that the storages of two tensors share if they are one. Instead: data_ptr(), which fake tensors do not have."""
    return cast("int", storage._cdata)


def read_log_settings() -> None:
    """Read TORCH_LOGS again, as the import of torch does. Instead: nothing."""
    from torch._logging import _internal

    initialise: Any = _internal._init_logs
    initialise()


def read_debug_level() -> None:
    """Read TORCH_DISTRIBUTED_DEBUG again, as the import of torch.distributed does. Instead: nothing."""
    import_module(C10D).set_debug_level_from_env()


def loader_iterator() -> type:
    """The class of which all iterators over a DataLoader are derived."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    return _BaseDataLoaderIter


# The module that looks for a graph in the cache, and else compiles it.
GRAPH_COMPILER = "torch._inductor.compile_fx"
# Its settings by which a compilation may communicate, whatever the graph: passes of the user's, and tuning that ranks divide.
_SHARED_WORK = (
    *("joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass"),
    *("_pre_fusion_custom_pass", "_post_fusion_custom_pass", "distributed_max_autotune_gemm"),
)


def coordinate_graph_cache(wait: Callable[[str], bool], end: Callable[[], None]) -> None:
    """Have a process ask before it compiles a graph that the cache does not have.

    ``FxGraphCache.load_with_key`` has had the graph's key as its first argument, and ``_compile_fx_inner`` the graph, from torch 2.6 to
    2.14; where they are missing, nothing is done. Instead: none.

    Args:
        wait: called with the key; True once another process may have put the graph into the cache, False if this one is to compile it. It
            is not called where passes may communicate, so that no process may be missing: for graphs with collectives, and with passes
            of the user's.
        end: called when a graph has been compiled and put into the cache, or has failed.
    """
    compiler: Any = sys.modules[GRAPH_COMPILER]
    cache: Any = getattr(compiler, "FxGraphCache", None)
    load, compile_graph = getattr(cache, "load_with_key", None), getattr(compiler, "_compile_fx_inner", None)
    if compile_graph is None or load is None:
        return
    may_wait: list[bool] = []  # of the graphs that are being compiled, each within the one before

    def compile_fx_inner(graph: Any, *arguments: Any, **named: Any) -> Any:
        may_wait.append(not _communicates(graph))
        try:
            return compile_graph(graph, *arguments, **named)
        finally:
            may_wait.pop()
            end()

    def load_with_key(key: str, *arguments: Any, **named: Any) -> Any:
        found = load(key, *arguments, **named)
        is_lacking = found[0] is None and bool(may_wait) and may_wait[-1]
        return load(key, *arguments, **named) if is_lacking and wait(key) else found

    cache.load_with_key = staticmethod(load_with_key)
    compiler._compile_fx_inner = compile_fx_inner


def _communicates(graph: Any) -> bool:
    config = sys.modules["torch._inductor.config"]
    if any(getattr(config, name, None) for name in _SHARED_WORK):
        return True
    graphs = (module.graph for module in graph.modules() if hasattr(module, "graph"))
    return any("c10d" in str(node.target) for each in graphs for node in each.nodes)
