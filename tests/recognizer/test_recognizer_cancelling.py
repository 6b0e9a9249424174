"""What cancels in a normalization unless it is 0: weights of moments, masks. Left to the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import stock_and_fused

import nv_norms_rewriter

EPSILON = 1e-3


def _weighted_moments(x: tf.Tensor, w: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.weighted_moments(x, [1, 2], w, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)


def _by_hand(divide: Callable) -> Callable:
    def norm(x: tf.Tensor, w: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        count = tf.reduce_sum(w * tf.ones_like(x), [1, 2], keepdims=True)
        mean = divide(tf.reduce_sum(x * w, [1, 2], keepdims=True), count)
        squares = w * tf.math.squared_difference(x, mean)
        variance = divide(tf.reduce_sum(squares, [1, 2], keepdims=True), count)
        return (x - mean) * tf.math.rsqrt(variance + EPSILON) * gamma + beta

    return norm


@pytest.mark.parametrize("jit", [False, True], ids=["grappler", "xla"])
@pytest.mark.parametrize(
    "norm",
    [
        pytest.param(_weighted_moments, id="weighted_moments"),
        pytest.param(_by_hand(tf.math.divide_no_nan), id="divide_no_nan"),
        pytest.param(_by_hand(lambda a, n: a / (n + 1e-8)), id="small_number"),
    ],
)
def test_weights_that_are_zero_for_a_sample(rng, norm: Callable, jit: bool) -> None:
    """All pixels of a sample have one weight: the mean is the plain one, unless that is 0.

    It was fused, and the third sample's y was off by 91 of 95.
    """
    x = rng.normal(1, 2, (3, 4, 4, 8)).astype(np.float32)
    gamma, beta = rng.normal(1, 1, (2, 8)).astype(np.float32)
    weights = np.array([1, 1, 0], np.float32).reshape(3, 1, 1, 1)

    def step(x: tf.Tensor, w: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            y = norm(x, w, gamma, beta)
            loss = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(loss, [x, gamma, beta])]

    shapes = (3, None, None, 8), (3, 1, 1, 1), (8,), (8,)
    signature = [tf.TensorSpec(shape) for shape in shapes]
    values = [x, weights, gamma, beta]
    for want, got in zip(*stock_and_fused(step, signature, values, jit), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-4 * np.nanmax(np.abs(want)))
    (record,) = nv_norms_rewriter.report()
    assert record.reason == "operand_cancels"


def _norm(x: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def _mean_of_marked_rows(x: tf.Tensor, m: tf.Tensor) -> tf.Tensor:
    mean = tf.math.divide_no_nan(tf.reduce_sum(x, -1, keepdims=True) * m, m) / 8.0
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def _quotient_of_marked(x: tf.Tensor, m: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.math.divide_no_nan((x - mean) * m, tf.sqrt(variance + EPSILON) * m)


@pytest.mark.parametrize(
    ("norm", "fused"),
    [
        (lambda x, m: tf.math.divide_no_nan(_norm(x) * m, m), 1),
        (lambda x, m: _norm(tf.math.divide_no_nan(x * m, m)), 1),
        (lambda x, m: _norm(x * m / (m + 1e-8)), 1),
        (_mean_of_marked_rows, 0),
        (_quotient_of_marked, 0),
    ],
    ids=["behind", "before", "almost_one", "mean", "quotient"],
)
def test_mask_that_is_taken_out_again(rng, norm: Callable, fused: int) -> None:
    """What lies between the mask's product and quotient, or beside them, may be fused."""
    x = rng.normal(1, 2, (4, 8)).astype(np.float32)
    mask = np.array([1, 0, 1, 0], np.float32).reshape(4, 1)
    signature = [tf.TensorSpec((4, 8)), tf.TensorSpec((4, 1))]
    results = stock_and_fused(lambda x, m: [norm(x, m)], signature, [x, mask], False)
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    assert len(nv_norms_rewriter.report().fused) == fused, nv_norms_rewriter.report()
