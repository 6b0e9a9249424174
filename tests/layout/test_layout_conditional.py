"""Norms scaled and shifted for each sample, between convolutions that the layout pass turns.

It transposes a sample's scale, too, of which the gradient reads both what is transposed and what is
not; and where the batch size is not known, each of the gradient's sums is behind an axis map.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from layout_emulation import optimize, run, trace, transposes


def adaptive(axes):
    def norm(x, scale, shift):
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-3)

    return norm


def scaled(x, scale, shift):
    mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3) * scale


def modulated():
    layer = layers.GroupNormalization(groups=4)
    layer.build((None, 6, 6, 8))
    return lambda x, scale, shift: layer(x) * (1 + scale) + shift


NORMS = {
    "instance": lambda: adaptive([1, 2]),
    "layer": lambda: adaptive([-1]),
    "scale alone": lambda: scaled,
    "group, modulated": modulated,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("batch", [3, None])
@pytest.mark.parametrize("activation", [tf.nn.leaky_relu, tf.nn.silu], ids=["leaky_relu", "silu"])
def test_gradients_of_norms_scaled_for_each_sample(norm, batch, activation):
    keras.utils.set_random_seed(0)
    norms = [NORMS[norm]() for _ in range(2)]
    convolutions = [layers.Conv2D(8, 3, padding="same", use_bias=False) for _ in range(3)]
    for convolution, channels in zip(convolutions, (4, 8, 8), strict=True):
        convolution.build((None, 6, 6, channels))

    def step(x, z):
        variables = [convolution.kernel.value for convolution in convolutions]
        with tf.GradientTape() as tape:
            tape.watch([x, z])
            scale, shift = tf.split(z[:, None, None, :], 2, axis=-1)
            y = x
            for convolution, apply in zip(convolutions, norms, strict=False):
                y = activation(apply(convolution(y), scale, shift))
            y = convolutions[-1](y)
            loss = tf.reduce_sum(tf.reduce_mean(y, [1, 2]) * tf.sin(tf.range(8, dtype=tf.float32)))
        return [loss, *tape.gradient(loss, [x, z, *variables])]

    graph, fetches = trace(step, [[batch, 6, 6, 4], [batch, 16]])
    stock, fused, report = optimize(graph, fetches)
    directions = [record.direction for record in report.fused if record.kind != "layout"]
    assert sorted(directions) == ["backward"] * 2 + ["forward"] * 2, report
    assert not report.refused, report
    assert transposes(fused) <= transposes(stock)
    expected, got = (run(each, fetches, unknown=3) for each in (stock, fused))
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=3e-5 * np.abs(a).max())
