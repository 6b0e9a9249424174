"""Gradients of parameters that have as many axes as those that are normalized, in other sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import stock_and_fused

import nv_norms_rewriter

EPSILON = 1e-3


def _expected(x: np.ndarray, dy: np.ndarray, merged: tuple, axes: tuple, gamma: np.ndarray):
    """dx, dgamma and dbeta from the formulas, of a layer norm of x in the shape `merged`."""
    shape = x.shape
    x, dy, gamma = (a.astype(np.float64) for a in (x.reshape(merged), dy.reshape(merged), gamma))
    centered = x - x.mean(axes, keepdims=True)
    rstd = 1 / np.sqrt((centered**2).mean(axes, keepdims=True) + EPSILON)
    xhat, w = centered * rstd, dy * gamma
    means = w.mean(axes, keepdims=True) + xhat * (w * xhat).mean(axes, keepdims=True)
    return (
        (rstd * (w - means)).reshape(shape),
        (dy * xhat).sum(0).reshape(gamma.shape),
        dy.sum(0).reshape(gamma.shape),
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown batch"])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("shape", "merged", "axes", "parameter"),
    [
        ((8, 4, 4), (8, 16), (1,), (1, 16)),
        ((8, 4, 4), (8, 16), (1,), (16,)),
        ((4, 3, 3, 2), (4, 1, 18), (2,), (1, 1, 18)),
        ((5, 4, 6), (5, 8, 3), (1, 2), (8, 3)),
        ((4, 3, 3, 2), (4, 9, 2), (1, 2), (1, 9, 2)),
        ((6, 4, 6), (6, 6, 4), (1, 2), (6, 4)),
    ],
    ids=str,
)
def test_they_have_the_shape_of_the_parameter(rng, shape, merged, axes, parameter, jit, known):
    gamma, beta = (tf.Variable(rng.normal(1, 1, parameter).astype(np.float32)) for _ in range(2))

    def step(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = tf.reshape(x, (-1, *merged[1:]))
            mean, variance = tf.nn.moments(z, axes, keepdims=True)
            y = (z - mean) * tf.math.rsqrt(variance + EPSILON) * gamma + beta
            loss = tf.reduce_sum(tf.reshape(y, tf.shape(x)) * dy)
        gradients = tape.gradient(loss, (x, gamma, beta))
        for variable, gradient in zip((gamma, beta), gradients[1:], strict=True):
            variable.assign_add(0.0 * gradient)  # fails at another shape
        return gradients

    values = [rng.normal(1.0, 2.0, shape).astype(np.float32) for _ in range(2)]
    spec = tf.TensorSpec(shape if known else (None, *shape[1:]))
    stock, fused = stock_and_fused(step, [spec] * 2, values, jit)
    assert len(nv_norms_rewriter.report().fused) == 2
    expected = _expected(*values, merged, axes, gamma.numpy())
    for a, b, c in zip(stock, fused, expected, strict=True):
        assert a.shape == b.shape == c.shape
        np.testing.assert_allclose(b, c, 2e-4, 2e-4)
