"""The pass before Grappler tells it the shapes behind functions that stay calls."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from early_graphs import EPSILON, as_the_formula, fused, run, truth

import nv_norms_rewriter
import oracle


@pytest.fixture(autouse=True)
def _fresh_report():
    nv_norms_rewriter.enable()
    nv_norms_rewriter.clear_report()


def behind_a_call(way, x):
    """Something that Grappler does not inline, and so knows no shape of."""
    if way == "noinline":
        return tf.function(tf.sin, experimental_attributes={"_noinline": True})(x)
    return tf.function(tf.sin, jit_compile=True)(x)


@pytest.mark.parametrize("way", ["noinline", "compiled"])
@pytest.mark.parametrize("batch", [3, None])
def test_shape_behind_a_call_is_told(rng, way, batch):
    """An axis that is counted from the first needs x's rank, and the gradient its sizes."""
    x = rng.normal(size=(3, 4, 8)).astype(np.float32)
    gamma = tf.Variable(rng.uniform(0.5, 2.0, 8).astype(np.float32))
    bias = tf.Variable(rng.normal(size=8).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec((batch, 4, 8))])
    def step(x):
        with tf.GradientTape() as tape:
            h = tf.nn.bias_add(behind_a_call(way, x), bias)
            mean, variance = tf.nn.moments(h, [2], keepdims=True)
            scale = tf.reshape(gamma, [1, 1, 8])
            y = tf.nn.batch_normalization(h, mean, variance, None, scale, EPSILON)
            loss = tf.reduce_mean(tf.square(y))
        return y, *tape.gradient(loss, [gamma, bias])

    (y, dgamma, dbias), ops = run(step, tf.constant(x))
    h = np.sin(x.astype(np.float64)) + bias.numpy()
    want = truth(h, [2], [2], gamma.numpy(), 0)
    np.testing.assert_allclose(y, want, 1e-4, 1e-4)
    dy = 2 * want / want.size
    exact = oracle.backward(dy, h, gamma.numpy(), (2,), (2,), EPSILON)
    np.testing.assert_allclose(dgamma, exact.dgamma, 1e-4, 1e-4)
    np.testing.assert_allclose(dbias, exact.dx.sum((0, 1)), 1e-4, 1e-4)
    assert fused() == ["layer_norm", "layer_norm"] and ops.count("EnsureShape") == 1


def test_graphs_without_norms_are_told_no_shapes(rng):
    x = tf.constant(rng.normal(size=(3, 8)).astype(np.float32))

    @tf.function
    def plain(x):
        return tf.exp(behind_a_call("compiled", x)) + 1.0

    @tf.function
    def norm(x):
        return as_the_formula("sqrt", [-1], [-1], 1.0, 0.0)(behind_a_call("compiled", x))

    assert "EnsureShape" not in run(plain, x)[1]
    with nv_norms_rewriter.disabled():
        assert "EnsureShape" not in run(norm, x)[1]


def test_shape_that_a_call_does_not_have_is_not_told(rng):
    """One that hangs on values."""
    x = rng.normal(size=(6, 8)).astype(np.float32)
    inner = tf.function(
        lambda x: tf.boolean_mask(x, x[:, 0] > 0), experimental_attributes={"_noinline": True}
    )

    @tf.function
    def norm(x):
        return as_the_formula("rsqrt", [1], [1], 1.0, 0.0)(inner(x))

    got, _ = run(norm, tf.constant(x))
    np.testing.assert_allclose(got, truth(x[x[:, 0] > 0], [1], [1], 1.0, 0.0), 1e-4, 1e-4)
