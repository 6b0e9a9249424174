"""The normalizations in float64 NumPy, from their formulas: what every test compares with.

    layer norm     Ba, Kiros, Hinton 2016, "Layer Normalization", arXiv:1607.06450
    instance norm  Ulyanov, Vedaldi, Lempitsky 2016, "Instance Normalization", arXiv:1607.08022
    group norm     Wu, He 2018, "Group Normalization", arXiv:1803.08494
    RMS norm       Zhang, Sennrich 2019, "Root Mean Square Layer Normalization", arXiv:1910.07467

All have one form: xhat = (x - mean) * rstd, y = xhat * gamma + beta, rstd = 1 / sqrt(var + eps),
where mean and var (the biased variance) are taken over some axes; RMS norm has mean = 0 and the
mean square in place of var. Gradients follow from this form, see backward().

Arguments of any real type are converted to float64 first (their values are exact there); results
are float64. gamma and beta may be None (1 and 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Forward(NamedTuple):
    """y has x's shape; mean and rstd keep the normalized axes with size 1."""

    y: np.ndarray
    mean: np.ndarray
    rstd: np.ndarray


class Backward(NamedTuple):
    """Gradients of x, gamma and beta, each in the shape of its variable."""

    dx: np.ndarray
    dgamma: np.ndarray
    dbeta: np.ndarray


def _float64(value: object) -> np.ndarray:
    return np.asarray(value).astype(np.float64)


def _axes(axis: int | tuple[int, ...] | list[int], rank: int) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return tuple(sorted(a % rank for a in axes))


def _mean(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Mean with kept axes; an empty row has mean 0 instead of NaN and a warning."""
    count = math.prod(values.shape[a] for a in axes)
    return values.sum(axis=axes, keepdims=True) / max(count, 1)


def along(parameter: object, shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """gamma or beta in a shape that broadcasts: that of `shape` along `axes`, 1 elsewhere."""
    axes = _axes(axes, len(shape))
    return _float64(parameter).reshape([n if i in axes else 1 for i, n in enumerate(shape)])


def normalize(x: object, axes: tuple[int, ...], epsilon: float, subtract_mean: bool) -> Forward:
    """xhat over `axes`; without subtract_mean, x / sqrt(mean(x^2) + epsilon)."""
    x = _float64(x)
    axes = _axes(axes, x.ndim)
    mean = _mean(x, axes)
    mean = mean + _mean(x - mean, axes)  # what a long sum has lost by rounding
    if not subtract_mean:
        mean = np.zeros_like(mean)
    centred = x - mean
    rstd = 1.0 / np.sqrt(_mean(centred * centred, axes) + epsilon)
    return Forward(centred * rstd, mean, rstd)


def affine(
    xhat: np.ndarray, gamma: object, beta: object, parameter_axes: tuple[int, ...]
) -> np.ndarray:
    """xhat * gamma + beta, each of them along `parameter_axes`, or absent."""
    y = xhat
    if gamma is not None:
        y = y * along(gamma, xhat.shape, parameter_axes)
    if beta is not None:
        y = y + along(beta, xhat.shape, parameter_axes)
    return y


def layer_norm(
    x: object,
    gamma: object = None,
    beta: object = None,
    axis: int | tuple[int, ...] | list[int] = -1,
    epsilon: float = 1e-3,
) -> Forward:
    """gamma and beta hold one element per position along `axis`, axes in ascending order."""
    axes = _axes(axis, np.ndim(x))
    xhat, mean, rstd = normalize(x, axes, epsilon, subtract_mean=True)
    return Forward(affine(xhat, gamma, beta, axes), mean, rstd)


def rms_norm(
    x: object,
    gamma: object = None,
    beta: object = None,
    axis: int | tuple[int, ...] | list[int] = -1,
    epsilon: float = 1e-6,
) -> Forward:
    """As layer_norm, without the mean."""
    axes = _axes(axis, np.ndim(x))
    xhat, mean, rstd = normalize(x, axes, epsilon, subtract_mean=False)
    return Forward(affine(xhat, gamma, beta, axes), mean, rstd)


def instance_norm(
    x: object,
    gamma: object = None,
    beta: object = None,
    channel_axis: int = -1,
    epsilon: float = 1e-3,
) -> Forward:
    """Over all axes but the first (batch) and the channels; gamma and beta have C elements."""
    rank = np.ndim(x)
    channel = channel_axis % rank
    axes = tuple(a for a in range(1, rank) if a != channel)
    xhat, mean, rstd = normalize(x, axes, epsilon, subtract_mean=True)
    return Forward(affine(xhat, gamma, beta, (channel,)), mean, rstd)


def group_norm(
    x: object,
    gamma: object = None,
    beta: object = None,
    groups: int = 32,
    channel_axis: int = -1,
    epsilon: float = 1e-3,
) -> Forward:
    """Over the channels of a group (C / groups neighbours) and all spatial axes; gamma, beta: C.

    mean and rstd have the shape [N, groups].
    """
    x = _float64(x)
    rank = x.ndim
    channel = channel_axis % rank
    last = np.moveaxis(x, channel, -1)
    grouped = last.reshape(*last.shape[:-1], groups, last.shape[-1] // groups)
    axes = (*range(1, rank - 1), rank)
    xhat, mean, rstd = normalize(grouped, axes, epsilon, subtract_mean=True)
    xhat = np.moveaxis(xhat.reshape(last.shape), -1, channel)
    shape = (x.shape[0], groups)
    return Forward(affine(xhat, gamma, beta, (channel,)), mean.reshape(shape), rstd.reshape(shape))


def backward(
    dy: object,
    x: object,
    gamma: object,
    axes: tuple[int, ...],
    parameter_axes: tuple[int, ...],
    epsilon: float,
    subtract_mean: bool = True,
) -> Backward:
    """Gradients of y = xhat * gamma + beta, the statistics taken over `axes`.

    With w = dy * gamma: dx = rstd * (w - mean(w) - xhat * mean(w * xhat)), from the chain rule
    through mean and var (RMS norm: without mean(w)); dgamma = sum(dy * xhat) and dbeta = sum(dy)
    over the axes along which the parameters do not vary.
    """
    dy = _float64(dy)
    axes = _axes(axes, dy.ndim)
    parameter_axes = _axes(parameter_axes, dy.ndim)
    xhat, _, rstd = normalize(x, axes, epsilon, subtract_mean)
    w = dy if gamma is None else dy * along(gamma, dy.shape, parameter_axes)
    dx = w - xhat * _mean(w * xhat, axes)
    if subtract_mean:
        dx = dx - _mean(w, axes)
    others = tuple(a for a in range(dy.ndim) if a not in parameter_axes)
    return Backward(rstd * dx, (dy * xhat).sum(axis=others), dy.sum(axis=others))


def central_differences(
    function: Callable[..., float], arrays: Sequence[object], step: float = 1e-5
) -> list[np.ndarray]:
    """The gradient of a number, function(*arrays), by each array's elements."""
    arrays = [_float64(array) for array in arrays]
    gradients = []
    for array in arrays:
        gradient = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            kept = array[at]
            array[at] = kept + step
            above = function(*arrays)
            array[at] = kept - step
            gradient[at] = (above - function(*arrays)) / (2 * step)
            array[at] = kept
        gradients.append(gradient)
    return gradients
