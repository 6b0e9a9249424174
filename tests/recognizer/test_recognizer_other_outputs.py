"""Ops with several outputs, of which ours would give another in the place of the first alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from recognizer_graphs import placeholder, run, stock_and_fused, trace, v1

from nv_norms_rewriter import rewrite

SHAPE = (1, 5, 5, 3)


def _batch_norm(x: tf.Tensor, scale: tf.Tensor, name: str | None = None):
    return tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=tf.zeros(3), mean=[], variance=[], epsilon=1e-3, name=name
    )


@pytest.mark.parametrize("jit", [False, True])
def test_the_offset_of_a_batch_norm_of_one_sample_keeps_its_gradient(rng, jit: bool) -> None:
    """Of one sample it is an instance norm; its gradient op gives the offset's, too."""
    layer = tf_keras.layers.BatchNormalization(scale=False, fused=True)
    layer.build(SHAPE)

    def step(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True) * dy)
        return tape.gradient(loss, [x, layer.beta])

    values = [rng.normal(1.0, 2.0, SHAPE).astype(np.float32) for _ in range(2)]
    stock, fused = stock_and_fused(step, [tf.TensorSpec(SHAPE)] * 2, values, jit)
    assert fused[1].shape == (3,)
    for a, b in zip(stock, fused, strict=True):
        np.testing.assert_allclose(a, b, 2e-4, 2e-5)
    np.testing.assert_allclose(fused[1], values[1].sum((0, 1, 2)), 2e-4, 2e-5)


@pytest.mark.parametrize("reader", ["fetched", "read"])
def test_gradients_of_a_constant_scale_and_offset(rng, reader: str) -> None:
    def make() -> None:
        x, dy = placeholder("x", SHAPE), placeholder("dy", SHAPE)
        scale = tf.constant([0.5, 1.0, 2.0])
        y, _, _, first, second, third = _batch_norm(x, scale)
        gradients = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=dy, x=x, scale=scale, reserve_space_1=first, reserve_space_2=second,
            reserve_space_3=third, epsilon=1e-3, name="gradients",
        )  # fmt: skip
        tf.identity(y, name="y")
        if reader == "read":
            for i in range(3):
                tf.identity(gradients[i], name=f"d{i}")

    graph = trace(make)
    fetches = ["gradients:0", "gradients:1", "gradients:2"]
    if reader == "read":
        fetches = ["d0:0", "d1:0", "d2:0"]
    after, _ = rewrite(graph, fetches=["y", *fetches])
    feeds = {name: rng.normal(size=SHAPE).astype(np.float32) for name in ("x", "dy")}
    for name in ["y:0", *fetches]:
        stock, got = run(graph, feeds, name), run(after, feeds, name)
        assert stock.shape == got.shape
        np.testing.assert_allclose(stock, got, 2e-4, 2e-5)


def test_statistics_of_a_batch_norm_that_are_fetched(rng) -> None:
    def make() -> None:
        _batch_norm(placeholder("x", SHAPE), tf.ones(3), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y:0", "y:1", "y:2"])
    x = {"x": rng.normal(1.0, 2.0, SHAPE).astype(np.float32)}
    for name in ("y:0", "y:1", "y:2"):
        stock, got = run(graph, x, name), run(after, x, name)
        assert stock.shape == got.shape
        np.testing.assert_allclose(stock, got, 2e-4, 2e-5)


def test_statistics_of_a_batch_norm_that_a_session_fetches(rng) -> None:
    x = rng.normal(1.0, 2.0, SHAPE).astype(np.float32)
    with tf.Graph().as_default():
        y, mean, variance, *_ = _batch_norm(placeholder("x", SHAPE), tf.ones(3))
        with v1.Session() as session:
            _, mean, variance = session.run([y, mean, variance], {"x:0": x})
    np.testing.assert_allclose(mean, x.mean((0, 1, 2)), 2e-5, 2e-5)
    np.testing.assert_allclose(variance, x.var((0, 1, 2), ddof=1), 2e-5, 2e-5)


@pytest.mark.parametrize("groups", [8, 4])
def test_root_that_somebody_still_reads_is_no_other_normalization(rng, groups: int) -> None:
    """A second pass finds the root of a fused norm, whose x the op reads behind views."""
    size = 8 // groups

    def make() -> None:
        x = placeholder("x", (3, 6, 8))
        split = tf.reshape(tf.expand_dims(x, 1), (3, 1, 6, groups, size))
        mean, variance = tf.nn.moments(split, (2, 4), keepdims=True)
        rstd = tf.math.rsqrt(variance + 1e-3, name="rstd")
        shape = (1, 1, 1, groups, size)
        gamma, beta = (tf.reshape(placeholder(name, (8,)), shape) for name in ("gamma", "beta"))
        tf.add((split - mean) * rstd * gamma, beta, name="y")

    graph = trace(make)
    first, report = rewrite(graph, fetches=["y", "rstd"])
    assert [record.fused for record in report] == [True]
    second, report = rewrite(first, fetches=["y", "rstd"])
    assert len(report) == 0
    feeds = {"x": rng.normal(1.0, 2.0, (3, 6, 8)), "gamma": rng.normal(size=8)}
    feeds["beta"] = rng.normal(size=8)
    for name in ("y:0", "rstd:0"):
        np.testing.assert_allclose(run(second, feeds, name), run(graph, feeds, name), 2e-5, 2e-5)
