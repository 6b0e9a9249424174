"""What the harnesses of both kernel libraries are asked (problem.h), of torch or NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

TYPES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}
FORMULAS = {"center": 0, "scale_only": 1, "rms": 2}


class Problem(ctypes.Structure):
    _fields_ = [
        ("dims", ctypes.c_int64 * 16),
        ("rank", ctypes.c_int64),
        ("axis", ctypes.c_int64 * 16),
        ("count_axis", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("channels_last", ctypes.c_int64),
        ("formula", ctypes.c_int64),
        ("epsilon", ctypes.c_double),
        ("x", ctypes.c_int64),
        ("param", ctypes.c_int64),
        ("y", ctypes.c_int64),
        ("dy", ctypes.c_int64),
        ("dparam", ctypes.c_int64),
        ("negative_slope", ctypes.c_double),
        ("silu", ctypes.c_int64),
        ("per_sample", ctypes.c_int64),
    ]


def type_of(array: Any) -> int:
    return TYPES[str(array.dtype).removeprefix("torch.")]


def make_problem(
    x: Any,
    axis: Sequence[int] = (),
    groups: int = -1,
    channels_last: bool = True,
    formula: str = "center",
    epsilon: float = 1e-3,
    negative_slope: float = 1.0,
    silu: bool = False,
    per_sample: bool = False,
) -> Problem:
    """axis: of a layer or RMS norm; without it a group norm, groups = -1: an instance norm.

    negative_slope: of the leaky relu behind the norm; 1: none, 0: a relu. silu: that in its place.
    per_sample: gamma and beta are [N, C], of a layer norm N times what they would be.
    """
    out = Problem()
    out.rank = len(x.shape)
    out.dims[: out.rank] = list(x.shape)
    out.count_axis = len(axis)
    out.axis[: len(axis)] = list(axis)
    out.groups, out.channels_last = groups, int(channels_last)
    out.formula, out.epsilon = FORMULAS[formula], epsilon
    out.negative_slope, out.silu = negative_slope, int(silu)
    out.per_sample = int(per_sample)
    out.x = out.param = type_of(x)
    return out


def forward_problem(x: Any, gamma: Any, beta: Any, y: Any, **kwargs: Any) -> Problem:
    out = make_problem(x, **kwargs)
    out.y = type_of(y)
    for param in (gamma, beta):
        if param is not None:
            out.param = type_of(param)
    return out


def backward_problem(
    dy: Any, x: Any, gamma: Any, beta: Any, dx: Any, dgamma: Any, dbeta: Any, **kwargs: Any
) -> Problem:
    out = make_problem(x, **kwargs)
    out.dy = type_of(dy)
    for param in (gamma, beta):
        if param is not None:
            out.param = type_of(param)
    out.y = type_of(x if dx is None else dx)
    # The type of an output that is not wanted must not make the computation wider.
    out.dparam = TYPES["float32"]
    for param in (dgamma, dbeta):
        if param is not None:
            out.dparam = type_of(param)
    return out
