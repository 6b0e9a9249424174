"""Where XLA has the channels of convolutions, whose layout a norm beside them does well to take.

XLA chooses the layouts of tensors inside a function by its convolutions, whatever format the graph
says. A custom call's operands are row-major: where they were channels last beside convolutions that
have their channels first, XLA copied each before and after the call. (14 instance norms of a 3-D
U-Net on an H200: its training step was 5 % slower with 10 of them fused so, and is 3 % faster with
all 14 fused channels first.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from . import _library, _records, _trace_describe

# Of a fused op, read by kernels/xla/placement.h.
_CALL_FORMAT = "_nv_norms_call_format"

CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")  # and their gradients

# Ops whose tensors of one rank XLA keeps in one layout; what computes a shape has another rank.
# fmt: off
_CARRIERS = frozenset((
    "Abs", "Add", "AddN", "AddV2", "AvgPool", "AvgPool3D", "BiasAdd", "Cast", "ConcatV2", "Elu",
    "EluGrad", "Erf", "Exp", "Identity", "IdentityN", "LeakyRelu", "LeakyReluGrad", "MaxPool",
    "MaxPool3D", "Maximum", "Minimum", "Mul", "Neg", "Pad", "PadV2", "RealDiv", "Relu", "Relu6",
    "ReluGrad", "Rsqrt", "Select", "SelectV2", "Selu", "Sigmoid", "Slice", "Softplus", "Split",
    "Square", "SquaredDifference", "StridedSlice", "Sub", "Tanh",
)) | _trace_describe.FUSED_OPS
# fmt: on

# How many ops are looked at on either side.
_FAR = 100


def call_format(x: tf.Tensor, ys: Iterable[tf.Tensor], data_format: str, device_type: str) -> str:
    """The format that x and y will have inside XLA: "N...C" or "NC...".

    Args:
      x: what an instance or group norm reads.
      ys: what it computes.
      data_format: "N...C" or "NC...", as the graph has it.
      device_type: "CPU" or "GPU", where the function will run.
    """
    rank = x.shape.rank
    wanted = _of_convolutions(rank, x.dtype) if device_type == "GPU" else None
    if wanted is None or wanted == data_format:
        return data_format
    readers = [op for y in ys for op in y.consumers()]
    if _reaches([x.op], rank, _sources) or _reaches(readers, rank, _readers):
        return wanted
    return data_format


def place(graph: tf.Graph, device_type: str) -> None:
    """Says of the graph's fused instance and group norms, and of their gradients, in which format
    XLA shall have them; of those that a program calls by name, too."""
    for op in graph.get_operations():
        if op.type not in ("FusedInstanceNorm", "FusedGroupNorm"):
            continue
        data_format = op.get_attr("data_format").decode()
        wanted = call_format(op.inputs[0], op.outputs[:1], data_format, device_type)
        if wanted != data_format:
            if op.inputs[0].shape.rank == 5 and op.inputs[0].dtype != tf.float64:
                _records.of_graph(graph).get(op.name, {})[_records.TURNED] = wanted == "NC..."
            gradients = [r for r in op.outputs[-1].consumers() if r.type == f"{op.type}Grad"]
            for each in (op, *gradients):
                each._set_attr(_CALL_FORMAT, tf.compat.v1.AttrValue(s=wanted.encode()))


def copy(op: Any, dx: tf.Tensor) -> None:
    """Says of the gradient that computes dx what its forward op says; eager ones say nothing."""
    if isinstance(op, tf.Operation) and _CALL_FORMAT in op.node_def.attr:
        dx.op._set_attr(_CALL_FORMAT, op.node_def.attr[_CALL_FORMAT])


def _of_convolutions(rank: int | None, dtype: tf.DType) -> str | None:
    """What XLA prefers for a convolution, as its layout_assignment.cc of GPUs says."""
    if rank is None or rank < 4:
        return None
    if forced := _library.core().convolution_format():
        return forced
    first = rank > 4 or dtype == tf.float64 or (dtype == tf.float32 and _oldest() < (9, 0))
    return "NC..." if first else "N...C"


def _oldest() -> tuple[int, int]:
    """The lowest compute capability of the GPUs."""
    found = [(9, 0)]
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        found.append(details.get("compute_capability", (9, 0)))
    return min(found)


def _sources(op: tf.Operation) -> Iterable[tf.Operation]:
    return (tensor.op for tensor in op.inputs)


def _readers(op: tf.Operation) -> Iterable[tf.Operation]:
    return (reader for tensor in op.outputs for reader in tensor.consumers())


def _reaches(
    ops: list[tf.Operation],
    rank: int | None,
    next_of: Callable[[tf.Operation], Iterable[tf.Operation]],
) -> bool:
    """Whether one of the ops is a convolution, or leads to one by ops of the layout of `rank`."""
    seen = set(ops)
    waiting = list(seen)
    for op in waiting:
        if op.type.startswith(CONVOLUTIONS):
            return True
        carries = op.type in _CARRIERS and op.outputs and op.outputs[0].shape.rank == rank
        if carries and len(seen) < _FAR:
            new = [o for o in next_of(op) if o not in seen]
            seen.update(new)
            waiting += new
    return False
