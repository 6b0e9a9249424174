"""Sizes that a traced function computes and Python knows, where inference does not follow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from traced import close, ops_in

import nv_norms_rewriter
import oracle

pytestmark = pytest.mark.usefixtures("every_norm")

EPSILON = 1e-3


def _step(norm: Callable, gamma: tf.Variable) -> Callable:
    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)
            loss = tf.reduce_sum(y * dy)
        return [y, *tape.gradient(loss, [x, gamma])]

    return step


def test_heads_of_a_product(rng: np.random.Generator) -> None:
    """As a query's norm: [batch, time] are taken from the tensor, and the heads change places."""
    gamma = tf.Variable(rng.uniform(0.5, 2.0, 8).astype(np.float32))
    weights = rng.normal(size=(16, 32)).astype(np.float32)

    def norm(x: tf.Tensor) -> tf.Tensor:
        batch, time = tf.shape(x)[0], tf.shape(x)[1]
        heads = tf.reshape(tf.tensordot(x, weights, 1), [batch, time, 4, 8])
        rms = tf.math.rsqrt(tf.reduce_mean(heads * heads, -1, keepdims=True) + EPSILON)
        return tf.transpose(heads * rms * gamma, [0, 2, 1, 3])

    x = rng.normal(size=(2, 6, 16)).astype(np.float32)
    dy = rng.normal(size=(2, 4, 6, 8)).astype(np.float32)
    function = tf.function(_step(norm, gamma), jit_compile=True, autograph=False)
    y, dx, dgamma = function(tf.constant(x), tf.constant(dy))
    assert ops_in(function.get_concrete_function(x, dy).graph) == {
        "FusedRMSNorm",
        "FusedRMSNormGrad",
    }
    wide = np.float64(weights)
    heads = (np.float64(x) @ wide).reshape(2, 6, 4, 8)
    scale = gamma.numpy()
    exact = oracle.rms_norm(heads, scale, epsilon=EPSILON).y
    close(y, exact.transpose(0, 2, 1, 3))
    back = oracle.backward(
        dy.transpose(0, 2, 1, 3), heads, scale, (3,), (3,), EPSILON, subtract_mean=False
    )
    close(dx, back.dx.reshape(2, 6, 32) @ wide.T)
    close(dgamma, back.dgamma)


@pytest.mark.parametrize("batch", [2, None])
def test_groups_of_a_repeated_image(rng: np.random.Generator, batch: int | None) -> None:
    """As keras.layers.UpSampling2D and a group norm that takes its sizes from the tensor."""
    gamma = tf.Variable(rng.uniform(0.5, 2.0, 8).astype(np.float32))

    def norm(x: tf.Tensor) -> tf.Tensor:
        x = tf.repeat(tf.repeat(1.5 * x, 2, 1), 2, 2)
        size = tf.shape(x)
        groups = tf.reshape(x, [size[0], size[1], size[2], 4, 2])
        mean, variance = tf.nn.moments(groups, [1, 2, 4], keepdims=True)
        return tf.reshape((groups - mean) * tf.math.rsqrt(variance + EPSILON), size) * gamma

    x = rng.normal(size=(2, 3, 2, 8)).astype(np.float32)
    dy = rng.normal(size=(2, 6, 4, 8)).astype(np.float32)
    signature = [tf.TensorSpec((batch, 3, 2, 8)), tf.TensorSpec((batch, 6, 4, 8))]
    function = tf.function(_step(norm, gamma), signature, jit_compile=True, autograph=False)
    y, dx, dgamma = function(tf.constant(x), tf.constant(dy))
    assert nv_norms_rewriter.report().counts == {"group_norm forward": 1, "group_norm backward": 1}
    large = 1.5 * np.float64(x).repeat(2, 1).repeat(2, 2)
    groups = large.reshape(2, 6, 4, 4, 2)
    scale = gamma.numpy().reshape(4, 2)
    xhat = oracle.normalize(groups, (1, 2, 4), EPSILON, True).y
    close(y, (xhat * scale).reshape(large.shape))
    back = oracle.backward(dy.reshape(groups.shape), groups, scale, (1, 2, 4), (3, 4), EPSILON)
    close(dx, 1.5 * back.dx.reshape(2, 3, 2, 2, 2, 8).sum((2, 4)))
    close(dgamma, back.dgamma.reshape(8))


def _layer_norm(x: tf.Tensor, gamma: tf.Variable) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON) * gamma


def _rms_norm(x: tf.Tensor, gamma: tf.Variable) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + EPSILON) * gamma


@pytest.mark.parametrize("norm", [_layer_norm, _rms_norm], ids=["layer", "rms"])
@pytest.mark.parametrize("length", [6, None])
@pytest.mark.parametrize("what", ["positions", "crop", "window"])
def test_slice_up_to_a_length(
    rng: np.random.Generator, norm: Callable, length: int | None, what: str
) -> None:
    """Of learned positions, or of a longer tensor: where and how far a slice goes is a Pack, of
    which inference makes a tensor of any rank."""
    gamma = tf.Variable(rng.uniform(0.5, 2.0, 8).astype(np.float32))
    learned = tf.Variable(rng.normal(size=(9, 8)).astype(np.float32))

    def sliced(x: tf.Tensor) -> tf.Tensor:
        time = tf.shape(x)[1]
        if what == "positions":
            return x + learned[:time]
        longer = tf.concat([x, x[:, :3]], 1) + learned if length else tf.concat([x, x], 1)
        begin = 1 if what == "window" else 0
        return longer[:, begin : begin + time]

    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = sliced(x)
            y = norm(z, gamma)
            loss = tf.reduce_sum(tf.square(y) * dy)
        return [z, y, *tape.gradient(loss, [z, gamma])]

    x, dy = rng.normal(size=(2, 2, 6, 8)).astype(np.float32)
    signature = [tf.TensorSpec((None, length, 8))] * 2
    function = tf.function(step, signature, jit_compile=True, autograph=False)
    z, y, dz, dgamma = function(tf.constant(x), tf.constant(dy))
    kind = "rms_norm" if norm is _rms_norm else "layer_norm"
    assert nv_norms_rewriter.report().counts == {f"{kind} forward": 1, f"{kind} backward": 1}
    assert z.shape == x.shape
    z, scale, centred = np.float64(z), gamma.numpy(), norm is _layer_norm
    exact = (oracle.layer_norm if centred else oracle.rms_norm)(z, scale, epsilon=EPSILON).y
    close(y, exact)
    back = oracle.backward(2 * exact * dy, z, scale, (2,), (2,), EPSILON, subtract_mean=centred)
    close(dz, back.dx)
    close(dgamma, back.dgamma)
