"""Which normalizations pay inside a function that XLA compiles for a CPU, and what shows it.

Measured by benchmarks/xla_cpu.py on two cores with AVX-512; the figures are XLA's time over the
fused op's, from benchmarks/results/2026-11-21-cpu-xla.csv.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._xla_rule import Norm

# What XLA computes in one loop with the norm.
_ELEMENTWISE = frozenset({
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Elu", "EluGrad", "Erf", "Exp", "LeakyRelu",
    "LeakyReluGrad", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Relu", "Relu6",
    "Relu6Grad", "ReluGrad", "Select", "SelectV2", "Sigmoid", "SigmoidGrad", "Softplus", "Square",
    "SquaredDifference", "Sub", "Tanh", "TanhGrad",
})  # fmt: skip


def why_left(norm: Norm) -> str:
    """A sentence if XLA's own code is at least as fast, "" if the fused op pays."""
    if norm.gradient == "stock":
        return "its gradient stays as it is, and XLA computes that together with the norm"
    if norm.dtype not in ("float32", "bfloat16"):
        return f"{norm.dtype} was not measured inside XLA on a CPU"
    if norm.shape is None:
        return "a norm of unknown rank was not measured inside XLA on a CPU"
    if norm.data_format == "NC..." or not (norm.data_format or _are_last(norm)):
        return f"{norm.kind} of this layout was not measured inside XLA on a CPU"
    elements = math.prod(math.inf if size is None else size for size in norm.shape)
    between = norm.producer in _ELEMENTWISE and not _ELEMENTWISE.isdisjoint(norm.readers)
    if elements < 200_000:
        return f"{elements:.0f} elements are too few (0.77 to 1.32 times as fast, most near 1)"
    if norm.kind in ("layer_norm", "rms_norm"):
        return _why_rows_are_left(norm, between)
    channels = norm.shape[-1]
    if channels is not None and channels < 16:
        return f"{channels} channels are too few (8 channels: 0.62 to 1.20 times as fast)"
    if norm.kind == "instance_norm" and between and not norm.gradient and elements < 1_000_000:
        return "elementwise ops on both sides, and small (0.91 to 0.97 times as fast)"
    return ""


def _are_last(norm: Norm) -> bool:
    """Whether the last axes are normalized, so that rows lie together."""
    assert norm.shape is not None
    rank = len(norm.shape)
    first = rank - len(norm.axes)
    return sorted(axis % rank for axis in norm.axes) == list(range(first, rank))


def _why_rows_are_left(norm: Norm, between: bool) -> str:
    assert norm.shape is not None
    sizes = [norm.shape[axis] for axis in norm.axes]
    row = math.prod(math.inf if size is None else size for size in sizes)
    half = norm.dtype != "float32"
    if row < 256:
        return f"rows of {row:.0f} elements are too short (64: 0.38 to 1.12 times as fast)"
    if between and row < 1024:
        return "elementwise ops on both sides of short rows (0.73 to 1.06 times as fast)"
    if half and norm.kind == "rms_norm":
        return "an RMS norm of a half-precision type (0.76 to 1.11 times as fast)"
    if half and norm.gradient and row < 768:
        return "short rows of a half-precision type with a gradient (0.88 to 0.95 times as fast)"
    return ""
