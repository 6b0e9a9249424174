"""Which function graphs are rewritten when they are traced, and for which device."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from . import _options, _process, _saving

# Set on graphs that have been looked at: where they were rewritten, if they were.
LOOKED_AT = "_nv_norms_looked_at"

# One of these takes the inverse root in every normalization.
_ROOTS = frozenset({"Rsqrt", "Sqrt", "Pow", "FusedBatchNormV3"})
# What fused ops beside them take in, or whose layout they take.
_BESIDE = frozenset(
    {"Cast", "LeakyRelu", "Relu", "Sigmoid", "Conv2D", "Conv3D", "Conv3DBackpropInputV2"}
)


def is_of_interest(types: set[str]) -> bool:
    """Whether ops of these types may be a normalization, or a fused one and what matters to it."""
    beside = not types.isdisjoint(_BESIDE) and not types.isdisjoint(_fused_ops())
    return beside or not types.isdisjoint(_ROOTS)


def holds_fused(graph: Any) -> bool:
    """Whether a trace has put fused ops in the graph."""
    types = _fused_ops()
    return any(op.type in types and _saving.is_marked(op) for op in graph.get_operations())


def _fused_ops() -> frozenset[str]:
    from . import _trace_describe

    return _trace_describe.FUSED_OPS


def where_of(graph: Any) -> str | None:
    """ "xla" in a function that XLA will compile, "trace" in one that Grappler will not bring to
    us, None in all others."""
    if not may_be_edited(graph):
        return None
    if _is_compiled(graph):
        return "xla"
    held = _process.state()["held"]
    return "trace" if held and device_type() in held else None


def may_be_edited(graph: Any) -> bool:
    from tensorflow.python.framework import func_graph, ops
    from tensorflow.python.saved_model import save_context

    if not isinstance(graph, func_graph.FuncGraph):
        return False
    # What stands for our ops is to hold TensorFlow's own.
    if _saving.is_raw():
        return False
    if save_context.in_save_context() and _options.get("saved_models") == "stock":
        return False
    if _has_workers() or _is_remote(graph) or _has_dtensor():
        return False
    # A v1 graph is written out with the functions in it.
    return ops.executing_eagerly_outside_functions()


def is_elsewhere(tensors: Sequence[Any]) -> bool:
    """Whether a function of these eager tensors runs where the fused ops may not be: on a device
    that a program has registered, as DTensor's, which must know each op."""
    from tensorflow.python.framework import ops

    names = (tensor.device for tensor in tensors if isinstance(tensor, ops.EagerTensor))
    return any(_type_of(name or "") not in ("", "CPU", "GPU") for name in names)


def _has_dtensor() -> bool:
    """Whether the program has DTensor's device, which lays out each op of what it compiles."""
    api = sys.modules.get("tensorflow.dtensor.python.api")
    return getattr(api, "_dtensor_singleton", None) is not None


def _has_workers() -> bool:
    """Whether the program is connected to other processes, to which it may send any function that
    it has traced, whatever devices the function names: a ClusterCoordinator does so."""
    from tensorflow.python.eager import context

    server = getattr(context.context(), "_server_def", None)
    return server is not None and sum(len(job.tasks) for job in server.cluster.job) > 1


def _is_remote(graph: Any) -> bool:
    """Whether any of the graph runs in another process, which may not know the fused ops."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import device_spec

    this = context.context()
    server = this._server_def or this._collective_ops_server_def
    job, task = (server.job_name, server.task_index) if server else ("localhost", 0)

    def is_here(name: str) -> bool:
        device = device_spec.DeviceSpecV2.from_string(name)
        return device.job in (None, job) and device.task in (None, task)

    names = {op.device for op in graph.get_operations()} | {this.device_name}
    return not all(is_here(name) for name in names if name)


def _is_compiled(graph: Any) -> bool:
    """Whether the function is traced for XLA on a CPU or GPU.

    Its ops then stand in an XLA context, and so does the graph around it while it is traced. (In
    the graph around it the call does, too, which is why only certain ops are asked.)
    """
    contexts = list(_contexts_around(graph))
    asked = _ROOTS | _fused_ops()
    contexts += [
        op._get_control_flow_context() for op in graph.get_operations() if op.type in asked
    ]
    return any(_is_xla(context) for context in contexts)


def is_for_xla(attributes: Any) -> bool:
    """Whether a function of these attributes is one that XLA compiles."""
    return getattr(attributes.get("_XlaMustCompile"), "b", False)


def builds_for_xla() -> bool:
    """Whether what is built now is for XLA to compile."""
    from tensorflow.python.framework import ops

    return any(_is_xla(context) for context in _contexts_around(ops.get_default_graph()))


def _contexts_around(graph: Any) -> Iterator[Any]:
    """What a graph, and those around it, are built in now."""
    while graph is not None:
        yield graph._get_control_flow_context()
        graph = getattr(graph, "outer_graph", None)


def _is_xla(context: Any) -> bool:
    from tensorflow.python.ops import control_flow_ops

    while context is not None:
        if context.IsXLAContext():
            # Contexts for TPUs are of types derived from this one.
            return type(context) is control_flow_ops.XLAControlFlowContext
        context = context.outer_context
    return False


def device_type() -> str:
    """The type of the device on which TensorFlow puts what is traced now if nothing else is said.

    A function may later run on another device; the fused ops run there, too.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    named = _type_of(context.context().device_name or "")
    if named:
        return named
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def device() -> str:
    """That device, as "/device:GPU:1": replicas of a tf.distribute.Strategy have their own."""
    from tensorflow.python.eager import context

    _, _, number = (context.context().device_name or "").rpartition("device:")[2].partition(":")
    return f"/device:{device_type()}:{number or 0}"


def _type_of(device: str) -> str:
    """ "GPU" of "/job:localhost/replica:0/task:0/device:GPU:0", "" where it is not said."""
    return device.rpartition("device:")[2].partition(":")[0].upper()
