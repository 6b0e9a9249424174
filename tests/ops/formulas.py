"""Normalizations and their gradients in float64 NumPy, from the formulas, and a comparison.

Layer norm, Ba et al. 2016; group norm, Wu and He 2018; instance norm, Ulyanov et al. 2016; RMS
norm, Zhang and Sennrich 2019. x is any array of real numbers; all is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

ULP = {  # a unit in the last place of 1
    np.dtype(np.float16): 2.0**-10,
    np.dtype(ml_dtypes.bfloat16): 2.0**-7,
    np.dtype(np.float32): 2.0**-23,
    np.dtype(np.float64): 2.0**-52,
}


def normalized(
    x: np.ndarray, axis: Sequence[int], epsilon: float, formula: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """xhat, x - mean, mean, rstd (the last two with axes of size 1).

    formula: "center", "scale_only" or "rms".
    """
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


def over(
    x: np.ndarray, params: np.ndarray | None, axis: Sequence[int], absent: float
) -> np.ndarray:
    """Parameters, one for each element of these axes of x, in a shape that broadcasts with x."""
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
    """y, mean, rstd; `reduced`: axes that share a statistic, `params`: axes that gamma spans."""
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


def grouped(
    x: np.ndarray, groups: int, channels_last: bool
) -> tuple[np.ndarray, list[int], list[int]]:
    """x with its channels split into [groups, C / groups], the reduced and the parameter axes."""
    channel = x.ndim - 1 if channels_last else 1
    c = x.shape[channel]
    shape = (*x.shape[:channel], groups, c // groups, *x.shape[channel + 1 :])
    view = x.reshape(shape)
    reduced = [a for a in range(1, view.ndim) if a != channel]
    return view, reduced, [channel, channel + 1]


def gradient_sizes(
    dy: np.ndarray,
    x: np.ndarray,
    scale: np.ndarray | None,
    reduced: Sequence[int],
    params: Sequence[int],
    epsilon: float,
    formula: str = "center",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For norm_gradient's outputs the sums of the terms' absolute values: what rounding acts on."""
    reduced = tuple(reduced)
    dy = np.abs(np.asarray(dy).astype(np.float64))
    xhat, centered, _, rstd = normalized(x, reduced, epsilon, formula)
    w = dy * np.abs(over(x, scale, params, 1.0))
    slope = np.mean(w * np.abs(xhat), axis=reduced, keepdims=True)
    dx = rstd * (w + np.mean(w, axis=reduced, keepdims=True) + np.abs(centered) * rstd * slope)
    drop = tuple(a for a in range(x.ndim) if a not in [p % x.ndim for p in params])
    # xhat, of size 1, is a difference: its error is absolute
    return dx, np.sum(dy * (np.abs(xhat) + 1.0), axis=drop), np.sum(dy, axis=drop)


def assert_close(
    actual: np.ndarray,
    expected: np.ndarray,
    units: float = 8.0,
    what: str = "",
    size: np.ndarray | None = None,
) -> None:
    """Asserts |actual - expected| <= units * u * (|expected| + size) + ulp * |expected|.

    u is that of the type computed in: float32's ulp, for float64 8 ulp, as NumPy's own sums are no
    closer. ulp is that of actual's type. size is by default the rms of expected. NaN and
    infinity must match.
    """
    actual = np.asarray(actual)
    assert actual.shape == expected.shape, f"{what}: {actual.shape}, expected {expected.shape}"
    value = actual.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(value), np.isnan(expected), err_msg=f"{what}: NaN")
    if expected.size == 0:
        return
    finite = np.isfinite(expected)
    if size is None:
        size = np.sqrt(np.mean(expected[finite] ** 2)) if finite.any() else 0.0
    unit = 2.0**-49 if actual.dtype == np.float64 else 2.0**-23
    bound = units * unit * (np.abs(expected) + size) + ULP[actual.dtype] * np.abs(expected)
    bound = bound + (2.0**-24 if actual.dtype == np.float16 else np.finfo(np.float32).tiny)
    worst = np.max((np.abs(value - expected) / bound)[finite], initial=0.0)
    assert worst <= 1.0, f"{what}: error {worst:.3g} times what is allowed, {units} units"
    infinite = ~finite & ~np.isnan(expected)
    np.testing.assert_array_equal(value[infinite], expected[infinite])
