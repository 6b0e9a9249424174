"""Norms behind layers that make TensorFlow lose the sizes of their input: unknown lengths."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter
import oracle

EPSILON = 1e-3
GROUPS = 4
LAYERS = keras.layers
FRONTS = {
    "conv1d": lambda: LAYERS.Conv1D(8, 5, 2, use_bias=False),
    "separable_conv1d": lambda: LAYERS.SeparableConv1D(8, 5, use_bias=False),
    "conv1d_transpose": lambda: LAYERS.Conv1DTranspose(8, 3, use_bias=False),
    "dense": lambda: LAYERS.Dense(8, use_bias=False),
    "up_sampling": lambda: LAYERS.UpSampling1D(2),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("norm", [GROUPS, -1, "layer"], ids=str)
def test_norm_behind_a_layer_without_bias(rng, front: str, norm: int | str) -> None:
    first = FRONTS[front]()
    layer = (
        LAYERS.LayerNormalization(epsilon=EPSILON)
        if norm == "layer"
        else LAYERS.GroupNormalization(norm, epsilon=EPSILON)
    )
    model = keras.Sequential([keras.Input((None, 8)), first, layer])
    weights = [layer.gamma, layer.beta]
    for weight in weights:
        weight.assign(rng.uniform(0.5, 2.0, 8).astype(np.float32))
    x = rng.normal(1.0, 2.0, (2, 12, 8)).astype(np.float32)
    between = first(tf.constant(x)).numpy()
    dy = rng.normal(size=between.shape).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 8))] * 2)
    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
            loss = tf.reduce_sum(y * dy)
        return [y, *tape.gradient(loss, [x, *(weight.value for weight in weights)])]

    with nv_norms_rewriter.disabled():
        stock = tf.function(step.python_function)(tf.constant(x), tf.constant(dy))
    nv_norms_rewriter.clear_report()
    y, dx, dgamma, dbeta = step(tf.constant(x), tf.constant(dy))
    kind = {GROUPS: "group_norm", -1: "instance_norm", "layer": "layer_norm"}[norm]
    report = nv_norms_rewriter.report()
    assert report.counts == {f"{kind} forward": 1, f"{kind} backward": 1}, report

    gamma, beta = (weight.numpy() for weight in weights)
    if norm == "layer":
        exact = oracle.layer_norm(between, gamma, beta, epsilon=EPSILON).y
    else:
        groups = 8 if norm == -1 else GROUPS
        exact = oracle.group_norm(between, gamma, beta, groups, -1, EPSILON).y
    np.testing.assert_allclose(y, exact, 1e-4, 1e-4)
    for got, same in zip((dx, dgamma, dbeta), stock[1:], strict=True):
        np.testing.assert_allclose(got, same, 1e-4, 1e-4 * np.abs(same).max())


def test_gradient_that_two_read_in_its_own_shape(rng) -> None:
    """dx in groups of unknown sizes, which more than a Reshape reads: it stays, with a reason."""

    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            size = tf.shape(x)
            groups = tf.reshape(x, [size[0], size[1], 4, 2])
            tape.watch(groups)
            mean, variance = tf.nn.moments(groups, [1, 3], keepdims=True)
            y = tf.reshape((groups - mean) * tf.math.rsqrt(variance + EPSILON), size)
            loss = tf.reduce_sum(y * dy)
        return [y, *tape.gradient(loss, [x, groups])]

    x, dy = (rng.normal(size=(2, 5, 8)).astype(np.float32) for _ in range(2))
    results = []
    for mode in (nv_norms_rewriter.disable, nv_norms_rewriter.enable):
        mode()
        nv_norms_rewriter.clear_report()
        signature = [tf.TensorSpec((None, None, 8))] * 2
        results.append(tf.function(step, signature)(tf.constant(x), tf.constant(dy)))
    for got, want in zip(*reversed(results), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    reasons = {record.reason for record in nv_norms_rewriter.report().refused}
    assert reasons == {"sizes_unknown"}, nv_norms_rewriter.report()
