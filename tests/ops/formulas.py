"""Normalizations and their gradients in float64 NumPy, written from the formulas, and how to compare with them.

Layer norm, Ba et al. 2016; group norm, Wu and He 2018; instance norm, Ulyanov et al. 2016; RMS norm, Zhang and
Sennrich 2019. Every function takes x as any array of real numbers and computes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

EPSILON = {  # a unit in the last place of 1
    np.dtype(np.float16): 2.0**-10,
    np.dtype(ml_dtypes.bfloat16): 2.0**-7,
    np.dtype(np.float32): 2.0**-23,
    np.dtype(np.float64): 2.0**-52,
}


def normalized(
    x: np.ndarray, axis: Sequence[int], epsilon: float, formula: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """xhat, x - mean, mean, rstd (the last two with axes of size 1), for formula "center", "scale_only" or "rms"."""
    x = np.asarray(x).astype(np.float64)
    axis = tuple(axis)
    if formula == "rms":
        mean = np.zeros_like(x.mean(axis, keepdims=True))
        spread = np.mean(x * x, axis=axis, keepdims=True)
    else:
        mean = x.mean(axis, keepdims=True)
        mean = mean + (x - mean).mean(axis, keepdims=True)
        spread = np.mean((x - mean) ** 2, axis=axis, keepdims=True)
    rstd = 1.0 / np.sqrt(spread + epsilon)
    xhat = (x - mean if formula == "center" else x) * rstd
    return xhat, x - mean, mean, rstd


def over(x: np.ndarray, params: np.ndarray | None, axis: Sequence[int], absent: float) -> np.ndarray:
    """Parameters (any shape, one for each element of x's ascending axes) in a shape that broadcasts with x."""
    if params is None:
        return np.float64(absent)
    axis = [a % x.ndim for a in axis]
    shape = [x.shape[i] if i in axis else 1 for i in range(x.ndim)]
    return np.asarray(params).astype(np.float64).reshape(shape)


def norm(
    x: np.ndarray,
    scale: np.ndarray | None,
    offset: np.ndarray | None,
    reduced: Sequence[int],
    params: Sequence[int],
    epsilon: float,
    formula: str = "center",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, mean, rstd; `reduced` are the axes that share a statistic, `params` the axes that gamma spans."""
    xhat, _, mean, rstd = normalized(x, reduced, epsilon, formula)
    y = xhat * over(x, scale, params, 1.0) + over(x, offset, params, 0.0)
    drop = tuple(a % x.ndim for a in reduced)
    return y, np.squeeze(mean, drop), np.squeeze(rstd, drop)


def norm_gradient(
    dy: np.ndarray,
    x: np.ndarray,
    scale: np.ndarray | None,
    reduced: Sequence[int],
    params: Sequence[int],
    epsilon: float,
    formula: str = "center",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dx, dscale, doffset, by the chain rule through mean and rstd."""
    reduced = tuple(a % x.ndim for a in reduced)
    dy = np.asarray(dy).astype(np.float64)
    xhat, centered, _, rstd = normalized(x, reduced, epsilon, formula)
    w = dy * over(x, scale, params, 1.0)
    source = centered if formula == "center" else np.asarray(x).astype(np.float64)
    d_rstd = np.sum(w * source, axis=reduced, keepdims=True)
    # d rstd / d x = -rstd^3 (x - mean) / n, for rms with mean 0
    dx = w * rstd - rstd**3 * centered * d_rstd / max(math.prod(x.shape[a] for a in reduced), 1)
    if formula == "center":
        dx = dx - np.mean(w * rstd, axis=reduced, keepdims=True)
    drop = tuple(a for a in range(x.ndim) if a not in [p % x.ndim for p in params])
    return dx, np.sum(dy * xhat, axis=drop), np.sum(dy, axis=drop)


def grouped(x: np.ndarray, groups: int, channels_last: bool) -> tuple[np.ndarray, list[int], list[int]]:
    """x with the channel axis split into [groups, C / groups], and the reduced and the parameter axes of that."""
    channel = x.ndim - 1 if channels_last else 1
    c = x.shape[channel]
    shape = (*x.shape[:channel], groups, c // groups, *x.shape[channel + 1 :])
    view = x.reshape(shape)
    reduced = [a for a in range(1, view.ndim) if a != channel]
    return view, reduced, [channel, channel + 1]


def assert_close(actual: np.ndarray, expected: np.ndarray, units: float = 4.0, what: str = "") -> None:
    """|actual - expected| <= units * ulp * (|expected| + root mean square of expected), NaN where NaN is expected.

    ulp is that of actual's type, but no finer than float32's where actual is float32 or less.
    """
    actual = np.asarray(actual)
    ulp = EPSILON[actual.dtype]
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    value = actual.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(value), np.isnan(expected), err_msg=f"{what}: NaN")
    if expected.size == 0:
        return
    finite = np.isfinite(expected)
    size = np.sqrt(np.mean(expected[finite] ** 2)) if finite.any() else 0.0
    bound = units * ulp * (np.abs(expected) + size) + np.finfo(np.float32).tiny
    if actual.dtype == np.float16:
        bound = bound + 2.0**-24
    worst = np.max(np.abs(value - expected)[finite] / bound[finite], initial=0.0)
    assert worst <= 1.0, f"{what}: error {worst * units:.3g} units in the last place, allowed {units}"
    np.testing.assert_array_equal(value[~finite & ~np.isnan(expected)], expected[~finite & ~np.isnan(expected)])
