"""What the ops and the kernels should give, as tests/oracle.py has it, and a comparison.

Here a normalization is told by its axes: those that share a statistic, those that gamma spans. x is
any array of real numbers; all is computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

import oracle

ULP = {  # a unit in the last place of 1
    np.dtype(np.float16): 2.0**-10,
    np.dtype(ml_dtypes.bfloat16): 2.0**-7,
    np.dtype(np.float32): 2.0**-23,
    np.dtype(np.float64): 2.0**-52,
}


def normalized(
    x: np.ndarray, axis: Sequence[int], epsilon: float, formula: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """y without gamma and beta, xhat, mean, rstd (the last two with axes of size 1).

    formula: "center"; "rms"; "scale_only", which divides x, with its mean, by its deviation.
    """
    xhat, mean, rstd = oracle.normalize(x, tuple(axis), epsilon, formula != "rms")
    plain = np.asarray(x).astype(np.float64) * rstd if formula == "scale_only" else xhat
    return plain, xhat, mean, rstd


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
    plain, _, mean, rstd = normalized(x, reduced, epsilon, formula)
    drop = tuple(a % x.ndim for a in reduced)
    y = oracle.affine(plain, scale, offset, tuple(params))
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
    """dx, dscale, doffset."""
    reduced = tuple(reduced)
    if formula != "scale_only":
        return oracle.backward(dy, x, scale, reduced, tuple(params), epsilon, formula == "center")
    # y = x * rstd * gamma, and d rstd / d x = -rstd^2 xhat / n
    plain, xhat, _, rstd = normalized(x, reduced, epsilon, formula)
    dy = np.asarray(dy).astype(np.float64)
    w = dy if scale is None else dy * oracle.along(scale, x.shape, tuple(params))
    dx = rstd * (w - xhat * np.mean(w * plain, axis=reduced, keepdims=True))
    drop = _others(x.ndim, params)
    return dx, np.sum(dy * plain, axis=drop), np.sum(dy, axis=drop)


Slope = float | str  # "silu", or of a leaky relu


def attributes_of(slope: Slope) -> dict[str, float | bool]:
    """Those that say so to an op, or to the harnesses of the kernels."""
    return {"silu": True} if slope == "silu" else {"negative_slope": slope}


def activated(t: np.ndarray, negative_slope: Slope) -> np.ndarray:
    """silu of t, t * sigmoid(t), where t is what norm() gives. Or a leaky relu of it: t where it is
    positive, else negative_slope * t; 0, not NaN, for t = -inf and a slope of 0."""
    if negative_slope == "silu":
        return t * sigmoid(t)
    with np.errstate(invalid="ignore"):
        below = np.where((t <= 0) & (negative_slope == 0), 0.0, negative_slope * t)
    return np.where(t > 0, t, below)


def sigmoid(t: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-t))"""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-np.asarray(t).astype(np.float64)))


def passed(dy: np.ndarray, t: np.ndarray, negative_slope: Slope) -> np.ndarray:
    """What an activation's gradient hands to the norm: dy times the derivative at t."""
    if negative_slope == "silu":
        s = sigmoid(t)
        return np.asarray(dy).astype(np.float64) * s * (1 + t * (1 - s))
    return np.asarray(dy).astype(np.float64) * np.where(t > 0, 1.0, negative_slope)


def passed_size(
    dy: np.ndarray, t: np.ndarray, negative_slope: Slope, t_size: np.ndarray
) -> np.ndarray:
    """What rounding acts on in passed(): silu's derivative passes on what t_sizes() says of t."""
    value = np.abs(passed(dy, t, negative_slope))
    if negative_slope != "silu":
        return value
    s = sigmoid(t)
    second = s * (1 - s) * (2 + t * (1 - 2 * s))
    return value + np.abs(np.asarray(dy).astype(np.float64) * second) * t_size


def t_sizes(
    x: np.ndarray,
    scale: np.ndarray | None,
    offset: np.ndarray | None,
    reduced: Sequence[int],
    params: Sequence[int],
    epsilon: float,
    formula: str = "center",
) -> np.ndarray:
    """What rounding acts on in y, computed in float32 from the stored mean."""
    plain, _, mean, rstd = normalized(x, reduced, epsilon, formula)
    terms = np.abs(plain) + (np.abs(mean) * rstd if formula == "center" else 0.0)
    if scale is not None:
        terms = terms * np.abs(oracle.along(scale, x.shape, tuple(params)))
    if offset is not None:
        terms = terms + np.abs(oracle.along(offset, x.shape, tuple(params)))
    return terms


def near_zero(x: np.ndarray, *meant: Any) -> np.ndarray:
    """Where what norm() gives may have any sign, computed in float32 from the stored mean: a leaky
    relu has no gradient there that could be compared. Arguments as those of norm()."""
    return np.abs(norm(x, *meant)[0]) <= 2.0**-21 * t_sizes(x, *meant)


def statistics(
    x: np.ndarray, axis: Sequence[int], formula: str = "center", epsilon: float = 1e-3
) -> tuple[np.ndarray, np.ndarray]:
    """mean and rstd as a forward op gives them: rounded to their type."""
    _, mean, rstd = norm(x, None, None, axis, axis, epsilon, formula)
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    return mean.astype(dtype), rstd.astype(dtype)


def _others(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    """The axes that are not among `axes`."""
    return tuple(a for a in range(rank) if a not in [b % rank for b in axes])


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
    plain, xhat, _, rstd = normalized(x, reduced, epsilon, formula)
    w = dy if scale is None else dy * np.abs(oracle.along(scale, x.shape, tuple(params)))
    slope = np.mean(w * np.abs(plain), axis=reduced, keepdims=True)
    dx = rstd * (w + np.mean(w, axis=reduced, keepdims=True) + np.abs(xhat) * slope)
    drop = _others(x.ndim, params)
    # xhat, of size 1, is a difference: its error is absolute
    return dx, np.sum(dy * (np.abs(plain) + 1.0), axis=drop), np.sum(dy, axis=drop)


def assert_close(
    actual: np.ndarray,
    expected: np.ndarray,
    units: float = 8.0,
    what: str = "",
    size: np.ndarray | None = None,
    ulps: float = 1.0,
) -> None:
    """Asserts |actual - expected| <= units * u * (|expected| + size) + ulps * ulp * |expected|.

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
    bound = units * unit * (np.abs(expected) + size) + ulps * ULP[actual.dtype] * np.abs(expected)
    bound = bound + (2.0**-24 if actual.dtype == np.float16 else np.finfo(np.float32).tiny)
    worst = np.max((np.abs(value - expected) / bound)[finite], initial=0.0)
    assert worst <= 1.0, f"{what}: error {worst:.3g} times what is allowed, {units} units"
    infinite = ~finite & ~np.isnan(expected)
    np.testing.assert_array_equal(value[infinite], expected[infinite])
