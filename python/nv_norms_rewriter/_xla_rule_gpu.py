"""Which normalizations pay inside a function that XLA compiles for a GPU, and what shows it.

Measured by benchmarks/xla_layers.py on one H200, 2026-11-21; the figures are XLA's time over the
fused op's, from benchmarks/results/2026-11-21-h200-xla-layers.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._xla_rule import Norm

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


@dataclasses.dataclass(frozen=True)
class _Case:
    """A norm as the rules see it; an unknown number is infinite.

    Attributes:
      layout: "rows" (the last axes are normalized), "channels last" (all between batch and
        channels is, for each channel alone), or "" for any other.
      size: of what shares a mean.
      elements: of x.
      half: whether x has two bytes to an element.
      gradient: whether the gradient is fused, too.
      fusible: whether all that reads y is elementwise.
    """

    layout: str
    size: float
    elements: float
    half: bool
    gradient: bool
    fusible: bool


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The first rule that holds decides. `evidence` says what was measured."""

    holds: Callable[[_Case], bool]
    left: bool
    what: str
    evidence: str


_RULES = (
    _Rule(
        lambda c: not c.layout,
        True,
        "groups of channels, channels first, and axes between others",
        "not measured inside XLA",
    ),
    _Rule(
        lambda c: c.layout == "rows" and c.half and c.size > 64 and c.size % 8 != 0,
        True,
        "rows of a half-precision type whose length is not a multiple of 8",
        "1000000 x 100: 0.96 forward, 0.99 with its gradient",
    ),
    _Rule(
        lambda c: c.layout == "rows" and 50_000 < c.size < 5_000_000,
        True,
        "rows of more than 50,000 elements",
        "1000 x 100000 and 100 x 1000000, with the gradient: 1.14 and 0.95 (float32), 0.96 and "
        "0.93 (bfloat16)",
    ),
    _Rule(
        lambda c: c.layout == "rows" and c.gradient,
        False,
        "other rows with their gradient",
        "float32 1.28 to 5.89, bfloat16 1.22 to 5.58; with a residual before, an activation after, "
        "or both 1.07 to 2.80",
    ),
    _Rule(
        lambda c: c.layout == "rows" and c.fusible,
        True,
        "rows without a gradient whose result only elementwise ops read",
        "gelu after: 0.81 to 1.01; with a residual before, too: 0.79 to 0.98",
    ),
    _Rule(
        lambda c: c.layout == "rows" and c.half and 64 < c.size < 512,
        True,
        "short rows of a half-precision type without a gradient",
        "200704 x 96: 0.92; with a residual before 0.93",
    ),
    _Rule(
        lambda c: c.layout == "rows",
        False,
        "other rows without a gradient",
        "float32 1.06 to 2.92, bfloat16 1.03 to 1.95; with a residual before 1.13 to 1.35",
    ),
    _Rule(
        lambda c: c.size <= 2048,
        False,
        "few elements to a channel",
        "2 x 12^3 x 256: 1.29 forward, 5.00 with its gradient; with an activation 1.29 and 4.38",
    ),
    _Rule(
        lambda c: c.fusible,
        True,
        "an instance norm whose result only elementwise ops read",
        "leaky_relu after: 0.75 to 0.81 forward, 0.73 to 1.04 with its gradient",
    ),
    _Rule(
        lambda c: c.gradient and c.elements < 10_000_000,
        True,
        "an instance norm of less than ten million elements with its gradient",
        "2 x 24^3 x 128: 0.88",
    ),
    _Rule(
        lambda c: True,
        False,
        "other instance norms",
        "1.09 to 1.59 forward, 1.00 to 1.34 with its gradient",
    ),
)


def why_left(norm: Norm) -> str:
    """A sentence if XLA's own code is at least as fast, "" if the fused op pays."""
    if norm.gradient == "stock":
        return "its gradient stays as it is, and XLA computes that together with the norm"
    if norm.dtype == "float64":
        return "float64 was not measured inside XLA on a GPU"
    case = _case(norm)
    rule = next(rule for rule in _RULES if rule.holds(case))
    return f"{rule.what} ({rule.evidence}; XLA's time over ours)" if rule.left else ""


def _case(norm: Norm) -> _Case:
    layout, size, elements = "", math.inf, math.inf
    if norm.shape is not None:
        rank = len(norm.shape)
        axes = sorted(axis % rank for axis in norm.axes)
        size = _product(norm.shape[axis] for axis in axes)
        elements = _product(norm.shape)
        if norm.kind in ("layer_norm", "rms_norm"):
            layout = "rows" if axes == list(range(rank - len(axes), rank)) else ""
        elif norm.kind == "instance_norm":
            layout = "channels last" if axes == list(range(1, rank - 1)) else ""
    return _Case(
        layout=layout,
        size=size,
        elements=elements,
        half=norm.dtype in ("float16", "bfloat16", "half"),
        gradient=norm.gradient == "fused",
        fusible=bool(norm.readers) and _ELEMENTWISE.issuperset(norm.readers),
    )


def _product(sizes: object) -> float:
    result = 1.0
    for size in sizes:
        result *= math.inf if size is None else size
    return result
