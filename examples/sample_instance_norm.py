"""Puts nv_norms' instance norm into a small model, in both layouts.

Keras has no InstanceNormalization; one writes GroupNormalization(groups=-1), or takes the layer of
tensorflow-addons. nv_norms has the layer, and the function that it calls:

    y = nv_norms.InstanceNormalization(axis=-1)(x)
    y, mean, inv_std = nv_norms.fused_instance_norm(x, gamma, beta, data_format="NDHWC")

`axis` says where the channels are (last or second); `data_format` is one of "N...C", "NC...",
"NHWC", "NCHW", "NDHWC", "NCDHW".

Usage: python examples/sample_instance_norm.py [--batch 2] [--size 12] [--policy mixed_float16]
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import nv_norms

CHANNELS = 8


def gradients(layer: keras.Layer, x: tf.Tensor) -> list[tf.Tensor]:
    """y, and the gradients of x, gamma and beta, op by op (no graph)."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(tf.sin(tf.cast(y, tf.float32)))
    return [y, *tape.gradient(loss, [x, *layer.trainable_variables])]


def relative_difference(got: tf.Tensor, expected: tf.Tensor) -> float:
    """The largest one, relative to the largest expected value."""
    got, expected = tf.cast(got, tf.float64), tf.cast(expected, tf.float64)
    return float(tf.reduce_max(tf.abs(got - expected)) / tf.reduce_max(tf.abs(expected)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=12, help="of the volumes, in voxels")
    parser.add_argument("--policy", default="float32", help="Keras dtype policy")
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(options.policy)
    print("layout    difference to Keras, relative: of y, of the gradients   function and layer")
    for axis, data_format in ((-1, "NDHWC"), (1, "NCDHW")):
        shape = [options.batch, *[options.size] * 3]
        shape.insert(len(shape) if axis == -1 else 1, CHANNELS)
        x = tf.random.normal(shape)
        stock = keras.layers.GroupNormalization(groups=-1, axis=axis)
        fused = nv_norms.InstanceNormalization(axis=axis)
        weights = [1 + 0.1 * np.random.normal(size=CHANNELS) for _ in range(2)]
        for layer in (stock, fused):
            layer.build(shape)
            layer.set_weights(weights)
        got, expected = gradients(fused, x), gradients(stock, x)
        apart = [relative_difference(a, b) for a, b in zip(got, expected, strict=True)]
        y, _, _ = nv_norms.fused_instance_norm(x, fused.gamma, fused.beta, data_format)
        same = np.array_equal(tf.cast(y, got[0].dtype), got[0])
        print(
            f"{data_format:7}   {apart[0]:.2e}, {max(apart[1:]):.2e}   "
            f"{'the same' if same else 'NOT the same'}"
        )


if __name__ == "__main__":
    main()
