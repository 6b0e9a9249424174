"""Which normalizations pay as custom calls inside XLA: as the nearest that was measured.

What was measured is in _xla_measured_gpu.py and _xla_measured_cpu.py. What has no like there is
left to XLA.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from . import _xla_measured_cpu, _xla_measured_gpu

# What a fused op must be faster by: the times spread by some 5 %.
_PAYS = 1.05
# How far the nearest may be: in the number of elements that share a mean, and of all of x.
_NEAR_SIZE = 8.0
_NEAR_ELEMENTS = 32.0
# Smaller norms are left. On a CPU most of their time is that of the call, and the times spread by a
# factor of two: six small group norms took a small U-Net's prediction from 3.8 to 4.4 ms. On a GPU
# none smaller was measured. There a call costs the host little where it is in a CUDA graph, and XLA
# is told to make these of as few kernels as are between two convolutions (see AllowSmallGraphs).
_LEAST_ELEMENTS = {"GPU": 250_000, "CPU": 50_000}
# Where the batch is unknown when a function is traced: what Keras takes if nothing is said.
_BATCH = 32
# Where a norm's size is unknown, smaller cases do not count: the time of less than a million
# elements is mostly that of the call, and what they gain or lose is microseconds.
_LARGE = 1_000_000
# A GPU's kernels are others where runs of the innermost axes are no multiple of so many bytes.
_VECTOR_BYTES = {"GPU": 16, "CPU": 1}

# What XLA computes in one kernel with the norm. If nothing else reads y, XLA need not write it.
# (ConcatV2: three norms behind concatenations, fused, took a diffusion model's prediction on an
# H200 from 1.77 to 1.86 ms, as the concatenations were tensors of their own then.)
# fmt: off
_ELEMENTWISE = frozenset((
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "ClipByValue", "ConcatV2", "Elu", "EluGrad",
    "Erf", "Erfc", "Exp", "Greater", "GreaterEqual", "LeakyRelu", "LeakyReluGrad", "Less",
    "LessEqual", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Relu", "Relu6",
    "Relu6Grad", "ReluGrad", "Rsqrt", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid",
    "SigmoidGrad", "Softplus", "SoftplusGrad", "Sqrt", "Square", "SquaredDifference", "Sub",
    "Tanh", "TanhGrad",
))
# fmt: on

# At the end of a ResNet's block y and the block's x are added. XLA computes that with the norm.
SUMS = frozenset(("Add", "AddN", "AddV2"))

# Rotary position embeddings read y and its halves; XLA computes them with the norm. (Fourteen norms
# of queries before them, fused, took Qwen3's prediction on an H200 from 17.4 to 17.8 ms.)
_PARTS = frozenset(("Slice", "Split", "SplitV", "StridedSlice", "Unpack"))

# Windows of an image, as transformers for images cut them out of y.
_MOVES = frozenset(("MirrorPad", "Pad", "PadV2", "Reverse", "ReverseV2", "Roll", "Transpose"))

# Channels' means, as squeezing nets multiply y with what follows from them; or a pool at a net's
# end.
_MEANS = frozenset(("Max", "Mean", "Min", "Sum"))

# Where nothing of a kind was measured, what stands in for it: an activation outside is no faster
# than one inside, and a sum is one more op that XLA computes with the norm, as an activation is.
_STANDS_IN = {
    "activation inside": "activation",
    "silu inside": "activation",
    "sum": "activation",
    "both inside": "both",
    "both silu inside": "both",
    "both sum": "both",
    "parts": "activation",
    "both parts": "both",
    "moved": "activation",
    "both moved": "both",
    "squeezed": "activation",
    "both squeezed": "both",
    "skip": "residual",
}

# A scale of each sample is multiplied with y, and with dy, outside of the fused op where that does
# not have it inside: that of a layer norm, or of a batch of unknown size. On an H100 six layer
# norms so scaled, 32 x 64 x 64 x 128 in mixed_float16 behind convolutions, took a step from 2.92 to
# 3.51 ms, instance norms from 3.15 to 3.52, at 16 x 128 x 128 x 64 from 3.04 to 3.27; predictions
# as long as XLA's own code (1.56 and 1.56, 1.24 and 1.25 ms). On a CPU, 8 x 32 x 32 x 32 in
# float32, steps took 17.9 and 18.3 ms, 30.9 and 31.5. So these are left (Norm.goes_on). With the
# scale inside such steps gain (2.31 to 1.92 ms, 1.78 to 1.68) as those of other norms do.

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclasses.dataclass(frozen=True)
class Norm:
    """A normalization in a function that XLA compiles.

    Attributes:
      kind: "layer_norm", "instance_norm", "group_norm" or "rms_norm".
      gradient: "" if the function does not differentiate it, "fused" if its gradient would be fused
        too, "stock" if the gradient stays as it is (and then needs what XLA computed forward).
      shape: of x; None for an unknown size, or for an unknown rank.
      axes: the normalized axes, as the graph counts them.
      data_format: "N...C" or "NC..." for instance and group norm, "" for the others.
      groups: of channels, for group norm; 0 for the others.
      dtype: of x ("float32").
      device_type: "CPU" or "GPU", where the function will probably run.
      producer: the op that computes x ("AddV2"), behind casts and views.
      readers: the ops that read y, behind casts and views.
      activation_inside: whether y comes out of an activation that the fused op computes, too.
      silu: whether that is silu.
      goes_on: whether y is scaled or shifted for each sample, beside the fused op.
      skip: whether x is a term of another sum, too, as beside a transformer's norms.
    """

    kind: str
    gradient: str
    shape: tuple[int | None, ...] | None
    axes: tuple[int, ...]
    data_format: str
    groups: int
    dtype: str
    device_type: str
    producer: str
    readers: tuple[str, ...]
    activation_inside: bool = False
    silu: bool = False
    goes_on: bool = False
    skip: bool = False


class Measured(NamedTuple):
    """One case: XLA's own code against the fused op.

    Attributes:
      kind: "layer_norm", "rms_norm", "instance_norm" or "group_norm".
      layout: "rows" (the last axis), "channels last" or "channels first".
      bytes: to an element of x.
      gradient: whether the gradient was computed, too.
      neighbours: elementwise ops around it: "", "residual" (before), "activation" (after), "both";
        "activation inside", "both inside" where the fused op computes the one after it; "silu
        inside", "both silu inside" where that is silu; "sum", "both sum" where another tensor is
        added to y; "parts", "both parts" where they read parts of y; "moved", "both moved" where
        they read it in another order; "squeezed", "both squeezed" where they read channels' means;
        "skip" where what is before is a sum that goes on beside the norm, and the gradients are
        sums.
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


MEASURED = {
    "GPU": [Measured(*line) for line in _xla_measured_gpu.MEASURED],
    "CPU": [Measured(*line) for line in _xla_measured_cpu.MEASURED],
}


@dataclasses.dataclass(frozen=True)
class _Case:
    """A norm in the terms of Measured; an unknown number is infinite.

    Attributes:
      device: "GPU" or "CPU".
      aligned: whether the innermost elements that lie together fill whole vectors.
      likely_elements: on a GPU with a usual batch, where that is unknown.
    """

    device: str
    kind: str
    layout: str
    bytes: int
    gradient: bool
    neighbours: str
    aligned: bool
    size: float
    elements: float
    likely_elements: float


def why_left(norm: Norm) -> str:
    """A sentence if XLA's own code is as fast, or nothing like the norm was measured; else ""."""
    if norm.gradient == "stock":
        return "its gradient stays as it is, and XLA computes that together with the norm"
    if norm.goes_on:
        return (
            "it is scaled or shifted for each sample, beside the fused op, which XLA computes "
            "together with the norm in the same time or less"
        )
    case = _case(norm)
    least = _LEAST_ELEMENTS[case.device]
    if case.likely_elements < least:
        return (
            f"fewer than {least:,} elements: too few to pay for a call out of XLA's code on a "
            f"{case.device}"
        )
    measured = MEASURED[case.device]
    nearest = _nearest(case, measured)
    if nearest is None and case.neighbours in _STANDS_IN:
        outside = dataclasses.replace(case, neighbours=_STANDS_IN[case.neighbours])
        nearest = _nearest(outside, measured)
    if nearest is None:
        return f"nothing like it was measured inside XLA on a {case.device} ({_described(case)})"
    if nearest.speedup >= _PAYS:
        return ""
    return (
        f"the fused op is {nearest.speedup:.2f} times as fast as XLA's own code in the nearest "
        f"case that was measured, {nearest.shape} ({_described(case)})"
    )


def _nearest(case: _Case, measured: Iterable[Measured]) -> Measured | None:
    """The nearest of the same kind; where the norm's sizes are unknown, the slowest it may be."""

    def apart(m: Measured) -> tuple[float, float]:
        return _factor(m.size, case.size), _factor(m.elements, case.elements)

    near = []
    for m in measured:
        size, elements = apart(m)
        if math.isinf(case.elements) and m.elements < _LARGE:
            continue
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
    aligned = _is_aligned(m.run * m.bytes, case.device)
    return (m.kind, m.layout, m.bytes, m.gradient, m.neighbours, aligned) == (
        case.kind,
        case.layout,
        case.bytes,
        case.gradient,
        case.neighbours,
        case.aligned,
    )


def _is_aligned(run_bytes: float, device: str) -> bool:
    return math.isinf(run_bytes) or run_bytes % _VECTOR_BYTES[device] == 0


def _factor(a: float, b: float) -> float:
    """How many times the larger is the smaller; 1 if one is unknown."""
    if math.isinf(a) or math.isinf(b):
        return 1.0
    return max(a, b) / max(min(a, b), 1.0)


def _case(norm: Norm) -> _Case:
    layout, size, elements, likely, run = "", math.inf, math.inf, math.inf, math.inf
    if norm.shape is not None:
        shape, rank = norm.shape, len(norm.shape)
        elements = likely = _product(shape)
        if norm.device_type == "GPU" and shape and shape[0] is None:
            likely = _BATCH * _product(shape[1:])
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
    device = "GPU" if norm.device_type == "GPU" else "CPU"
    return _Case(
        device=device,
        kind=norm.kind,
        layout=layout,
        bytes=bytes_,
        gradient=norm.gradient == "fused",
        neighbours=_neighbours(norm),
        aligned=_is_aligned(run * bytes_, device),
        size=size,
        elements=elements,
        likely_elements=likely,
    )


def _neighbours(norm: Norm) -> str:
    after = ""
    # With one more op after an activation, XLA computes both with the norm, and the fused op one.
    readers = frozenset(norm.readers)
    if readers and readers <= _ELEMENTWISE:
        after = "sum" if readers <= SUMS else "activation"
    elif readers and readers <= _ELEMENTWISE | _PARTS | _MOVES | _MEANS:
        after = "squeezed" if readers & _MEANS else "moved" if readers & _MOVES else "parts"
    elif norm.activation_inside:
        after = "silu inside" if norm.silu else "activation inside"
    if norm.producer not in _ELEMENTWISE:
        return after
    if not after:
        return "skip" if norm.skip else "residual"
    return f"both {after.removeprefix('activation').strip()}".strip()


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
        "activation inside": "an activation inside",
        "both inside": "elementwise ops before, an activation inside",
        "silu inside": "a silu inside",
        "both silu inside": "elementwise ops before, a silu inside",
        "sum": "a sum after",
        "both sum": "elementwise ops before, a sum after",
        "parts": "elementwise ops after, of parts of it",
        "both parts": "elementwise ops on both sides, of parts of it",
        "moved": "what moves its elements after",
        "both moved": "elementwise ops before, what moves its elements after",
        "squeezed": "means of it after",
        "both squeezed": "elementwise ops before, means of it after",
        "skip": "a sum before, which goes on beside it",
    }
    return ", ".join(filter(None, [*words, near[case.neighbours]]))


def _product(sizes: Iterable[int | None]) -> float:
    return math.prod(math.inf if size is None else size for size in sizes)
