"""Puts nv_norms' layer norm in the place of Keras' in a small model, by hand, in two ways.

The model is a convolution followed by a layer norm over all axes but the batch. Written as

    y = keras.layers.LayerNormalization(axis=(1, 2, 3))(x)

it becomes one fused op by the layer of the same name and arguments, or by a call of the function:

    y = nv_norms.LayerNormalization(axis=(1, 2, 3))(x)
    y, mean, inv_std = nv_norms.fused_layer_norm(x, gamma, beta, axis=(1, 2, 3))

All three compute the same, and their weights train. To have this done for a model that you do not
want to change, import nv_norms_rewriter instead (keras_model.py).

Usage: python examples/sample_layer_norm.py [--batch 10] [--size 16] [--policy mixed_float16]
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import nv_norms

AXES = (1, 2, 3)


class CallsTheFunction(keras.layers.Layer):
    """A layer norm as one would write it around the function."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = [input_shape[axis] for axis in AXES]
        self.gamma = self.add_weight(shape=shape, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=shape, initializer="zeros", name="beta")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        y, _, _ = nv_norms.fused_layer_norm(x, self.gamma, self.beta, axis=AXES, epsilon=1e-3)
        return y


NORMS = {
    "Keras": lambda: keras.layers.LayerNormalization(axis=AXES),
    "nv_norms, layer": lambda: nv_norms.LayerNormalization(axis=AXES),
    "nv_norms, function": CallsTheFunction,
}


def build(norm: Any, size: int) -> keras.Model:
    """A convolution and a norm."""
    x = keras.Input((size, size, 4))
    y = keras.layers.Conv2D(4, 2, padding="same")(x)
    return keras.Model(x, norm(y))


def step(model: keras.Model, x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The output and the gradients of all weights, in a graph."""

    @tf.function
    def train(x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            y = model(x)
            loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32) - 1.0))
        return y, tape.gradient(loss, model.trainable_variables)

    return train(x)


def relative_difference(got: tf.Tensor, expected: tf.Tensor) -> float:
    """The largest one, relative to the largest expected value."""
    got, expected = tf.cast(got, tf.float64), tf.cast(expected, tf.float64)
    return float(tf.reduce_max(tf.abs(got - expected)) / tf.reduce_max(tf.abs(expected)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--size", type=int, default=16, help="of the images, in pixels")
    parser.add_argument("--policy", default="float32", help="Keras dtype policy")
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(options.policy)
    x = tf.random.normal((options.batch, options.size, options.size, 4))
    expected = None
    print(f"{'':20} weights   difference to Keras, relative: of y, of the gradients")
    for name, norm in NORMS.items():
        model = build(norm(), options.size)
        if expected is None:
            weights = [w + 0.1 * np.random.normal(size=w.shape) for w in model.get_weights()]
        model.set_weights(weights)
        y, gradients = step(model, x)
        got = [y, *gradients]
        expected = expected or got
        apart = [relative_difference(a, b) for a, b in zip(got, expected, strict=True)]
        print(f"{name:20} {len(model.trainable_weights):7}   {apart[0]:.2e}, {max(apart[1:]):.2e}")


if __name__ == "__main__":
    main()
