"""Norms that are scaled before they are norms: s * (x - mean) * rstd, as adaptive instance norms
are written. What their own output is differentiated by, dy * s, is no tensor of the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import stock_and_fused

import nv_norms_rewriter
import oracle

EPSILON = 1e-3
SHAPE, SCALE = (3, 5, 6, 8), (3, 1, 1, 8)


def _divided(x: tf.Tensor, scale: tf.Tensor, rms: bool, axes: list[int]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    if rms:
        return scale * x / tf.sqrt(tf.reduce_mean(x * x, axes, keepdims=True) + EPSILON)
    return scale * (x - mean) / tf.sqrt(variance + EPSILON)


def _multiplied(x: tf.Tensor, scale: tf.Tensor, rms: bool, axes: list[int]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    if rms:
        mean, variance = 0.0, tf.reduce_mean(x * x, axes, keepdims=True)
    return (x - mean) * scale * tf.math.rsqrt(variance + EPSILON)


def _over_scale(x: tf.Tensor, scale: tf.Tensor, rms: bool, axes: list[int]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    if rms:
        mean, variance = 0.0, tf.reduce_mean(x * x, axes, keepdims=True)
    return (x - mean) / (1.0 / scale) * tf.math.rsqrt(variance + EPSILON)


def _step(norm: Callable, rms: bool, axes: list[int]) -> Callable:
    def step(x: tf.Tensor, scale: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            y = norm(x, scale, rms, axes)
            loss = tf.reduce_sum(tf.square(y) * dy)
        return [y, *tape.gradient(loss, [x, scale])]

    return step


def _exact(values: list[np.ndarray], rms: bool, axes: list[int]) -> list[np.ndarray]:
    x, scale, dy = (value.astype(np.float64) for value in values)
    xhat = (oracle.rms_norm if rms else oracle.layer_norm)(x, axis=axes, epsilon=EPSILON).y
    dy = 2.0 * dy * xhat * scale
    dx = oracle.backward(dy * scale, x, None, tuple(axes), (), EPSILON, subtract_mean=not rms).dx
    ones = tuple(i for i, size in enumerate(scale.shape) if size == 1)
    return [xhat * scale, dx, (dy * xhat).sum(ones, keepdims=True)]


def _fused(direction: str) -> int:
    return sum(record.direction == direction for record in nv_norms_rewriter.report().fused)


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("axes", [[1, 2], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("rms", [False, True], ids=["centred", "rms"])
@pytest.mark.parametrize("norm", [_divided, _multiplied, _over_scale], ids=lambda n: n.__name__)
def test_scale_of_each_sample(rng, norm: Callable, rms: bool, axes: list[int], jit: bool) -> None:
    if rms and axes == [1, 2]:
        axes = [3]
    values = [rng.normal(1.0, 2.0, shape).astype("f") for shape in (SHAPE, SCALE, SHAPE)]
    values[1] = rng.uniform(0.5, 2.0, SCALE).astype("f")
    signature = [tf.TensorSpec(value.shape) for value in values]
    stock, fused = stock_and_fused(_step(norm, rms, axes), signature, values, jit)
    assert _fused("backward") == 1 and not nv_norms_rewriter.report().refused
    for got, before, exact in zip(fused, stock, _exact(values, rms, axes), strict=True):
        size = np.abs(exact).max()
        np.testing.assert_allclose(before, exact, 1e-4, 1e-5 * size, err_msg="stock")
        np.testing.assert_allclose(got, exact, 1e-4, 1e-5 * size)


@pytest.mark.parametrize("batches", [(3, 3), (1, 3), (3, 1)], ids=str)
def test_scale_that_may_be_of_another_batch(rng, batches: tuple[int, int]) -> None:
    """One sample that is scaled in three ways has a gradient of three dy."""
    images, scales = batches
    most = max(batches)
    values = [
        rng.normal(1.0, 2.0, (images, *SHAPE[1:])).astype("f"),
        rng.uniform(0.5, 2.0, (scales, *SCALE[1:])).astype("f"),
        rng.normal(1.0, 2.0, (most, *SHAPE[1:])).astype("f"),
    ]
    signature = [tf.TensorSpec((None, *value.shape[1:])) for value in values]
    for jit in (False, True):
        step = _step(_divided, False, [1, 2])
        stock, fused = stock_and_fused(step, signature, values, jit)
        assert _fused("backward") == 0
        for got, before in zip(fused, stock, strict=True):
            assert got.shape == before.shape
            np.testing.assert_allclose(got, before, 1e-3, 1e-5 * np.abs(before).max())


def test_scale_that_comes_from_x(rng) -> None:
    """Its part of dx is beside the norm's."""

    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            scale = tf.sigmoid(tf.reduce_max(x, [1, 2], keepdims=True))
            loss = tf.reduce_sum(tf.square(_divided(x, scale, False, [1, 2])) * dy)
        return [loss, tape.gradient(loss, x)]

    values = [rng.normal(1.0, 2.0, SHAPE).astype("f") for _ in range(2)]
    signature = [tf.TensorSpec(SHAPE)] * 2
    for jit in (False, True):
        stock, fused = stock_and_fused(step, signature, values, jit)
        for got, before in zip(fused, stock, strict=True):
            np.testing.assert_allclose(got, before, 1e-4, 1e-5 * np.abs(before).max())
