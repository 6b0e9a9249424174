"""Which normalizations pay inside a function that XLA compiles for a GPU: as the nearest measured.

What was measured is in _xla_measured_gpu.py. What has no like there is left to XLA.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ._xla_measured_gpu import MEASURED

if TYPE_CHECKING:
    from ._xla_rule import Norm

# What a fused op must be faster by: the times spread by some 5 %.
_PAYS = 1.05
# How far the nearest may be: in the number of elements that share a mean, and of all of x.
_NEAR_SIZE = 8.0
_NEAR_ELEMENTS = 32.0
# Kernels load 16 bytes at a time where the innermost axes are a multiple of it.
_VECTOR_BYTES = 16

# What XLA computes in one kernel with the norm. If nothing else reads y, XLA need not write it.
# fmt: off
_ELEMENTWISE = frozenset((
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "ClipByValue", "Elu", "EluGrad", "Erf", "Erfc",
    "Exp", "Greater", "GreaterEqual", "LeakyRelu", "LeakyReluGrad", "Less", "LessEqual",
    "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Relu", "Relu6", "Relu6Grad",
    "ReluGrad", "Rsqrt", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad",
    "Softplus", "SoftplusGrad", "Sqrt", "Square", "Sub", "Tanh", "TanhGrad",
))
# fmt: on

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


class Measured(NamedTuple):
    """One case: XLA's own code against the fused op.

    Attributes:
      kind: "layer_norm", "rms_norm", "instance_norm" or "group_norm".
      layout: "rows" (the last axis), "channels last" or "channels first".
      bytes: to an element of x.
      gradient: whether the gradient was computed, too.
      neighbours: elementwise ops around it: "", "residual" (before), "activation" (after), "both".
      run: innermost elements that lie together: a row, the channels, or a channel's positions.
      size: how many elements share a mean.
      elements: of x.
      speedup: XLA's time over the fused op's.
      shape: of x, to read.
    """

    kind: str
    layout: str
    bytes: int
    gradient: bool
    neighbours: str
    run: int
    size: int
    elements: int
    speedup: float
    shape: str


@dataclasses.dataclass(frozen=True)
class _Case:
    """A norm in the terms of Measured; an unknown number is infinite.

    Attributes:
      aligned: whether the innermost elements that lie together fill whole vectors.
    """

    kind: str
    layout: str
    bytes: int
    gradient: bool
    neighbours: str
    aligned: bool
    size: float
    elements: float


def why_left(norm: Norm) -> str:
    """A sentence if XLA's own code is as fast, or nothing like the norm was measured; else ""."""
    if norm.gradient == "stock":
        return "its gradient stays as it is, and XLA computes that together with the norm"
    if norm.dtype not in _BYTES:
        return f"{norm.dtype} was not measured inside XLA on a GPU"
    case = _case(norm)
    nearest = _nearest(case, (Measured(*line) for line in MEASURED))
    if nearest is None:
        return f"nothing like it was measured inside XLA on a GPU ({_described(case)})"
    if nearest.speedup >= _PAYS:
        return ""
    return (
        f"{nearest.speedup:.2f} times as fast as XLA's own code at {nearest.shape}, the nearest "
        f"that was measured ({_described(case)})"
    )


def _nearest(case: _Case, measured: Iterable[Measured]) -> Measured | None:
    """The nearest of the same kind; where the norm's sizes are unknown, the slowest it may be."""

    def apart(m: Measured) -> tuple[float, float]:
        return _factor(m.size, case.size), _factor(m.elements, case.elements)

    near = []
    for m in measured:
        size, elements = apart(m)
        if _is_like(m, case) and size <= _NEAR_SIZE and elements <= _NEAR_ELEMENTS:
            near.append(m)
    if not near:
        return None
    if math.isinf(case.size):
        return min(near, key=lambda m: m.speedup)
    if math.isinf(case.elements):
        return min(near, key=lambda m: (apart(m)[0], m.speedup))
    # The size decides more about the kernel than the number of rows or channels does.
    return min(near, key=lambda m: (apart(m)[0] * math.sqrt(apart(m)[1]), m.speedup))


def _is_like(m: Measured, case: _Case) -> bool:
    return (m.kind, m.layout, m.bytes, m.gradient, m.neighbours, _is_aligned(m.run, m.bytes)) == (
        case.kind,
        case.layout,
        case.bytes,
        case.gradient,
        case.neighbours,
        case.aligned,
    )


def _is_aligned(run: float, bytes_: int) -> bool:
    return math.isinf(run) or run * bytes_ % _VECTOR_BYTES == 0


def _factor(a: float, b: float) -> float:
    """How many times the larger is the smaller; 1 if one is unknown."""
    if math.isinf(a) or math.isinf(b):
        return 1.0
    return max(a, b) / max(min(a, b), 1.0)


def _case(norm: Norm) -> _Case:
    layout, size, elements, run = "", math.inf, math.inf, math.inf
    if norm.shape is not None:
        shape, rank = norm.shape, len(norm.shape)
        elements = _product(shape)
        axes = sorted(axis % rank for axis in norm.axes)
        if norm.kind in ("layer_norm", "rms_norm"):
            size = run = _product(shape[axis] for axis in axes)
            layout = "rows" if axes == list(range(rank - len(axes), rank)) else "axes between"
        else:
            layout = "channels last" if norm.data_format == "N...C" else "channels first"
            last = norm.data_format == "N...C"
            channels = _product([shape[-1 if last else 1]])
            positions = _product(shape[1:-1] if last else shape[2:])
            size = positions * (channels / norm.groups if norm.groups > 0 else 1)
            run = channels if last else size
    bytes_ = _BYTES[norm.dtype]
    residual = norm.producer in _ELEMENTWISE
    activation = bool(norm.readers) and _ELEMENTWISE.issuperset(norm.readers)
    return _Case(
        kind=norm.kind,
        layout=layout,
        bytes=bytes_,
        gradient=norm.gradient == "fused",
        neighbours={
            (False, False): "",
            (True, False): "residual",
            (False, True): "activation",
            (True, True): "both",
        }[residual, activation],
        aligned=_is_aligned(run, bytes_),
        size=size,
        elements=elements,
    )


def _described(case: _Case) -> str:
    words = [
        case.kind,
        case.layout,
        f"{case.bytes} bytes to an element",
        "forward and backward" if case.gradient else "forward",
    ]
    near = {
        "": "",
        "residual": "elementwise ops before",
        "activation": "elementwise ops after",
        "both": "elementwise ops on both sides",
    }
    return ", ".join(filter(None, [*words, near[case.neighbours]]))


def _product(sizes: Iterable[int | None]) -> float:
    return math.prod(math.inf if size is None else size for size in sizes)
