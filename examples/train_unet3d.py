"""Trains a 3-D U-Net with instance norm by model.fit, as it is and with its norms fused.

The task is made up, so that nothing is downloaded: volumes of noise with a few brighter balls, to
be segmented. Both runs start from the same weights and see the same volumes; the model is plain
Keras, and the only difference is whether nv_norms_rewriter is on. Their losses are apart by what
steps make of roundings. On a CPU convolutions take nearly all of a step, fused or not.

Usage: python examples/train_unet3d.py [--size 32] [--batch 2] [--volumes 16] [--epochs 2]
       [--width 8] [--policy mixed_float16] [--quiet]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import nv_norms_rewriter

SEED = 3


def block(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
    """Twice: convolution, instance norm, activation."""
    for _ in range(2):
        x = keras.layers.Conv3D(channels, 3, padding="same", use_bias=False)(x)
        x = keras.layers.GroupNormalization(groups=-1)(x)
        x = keras.layers.LeakyReLU(0.01)(x)
    return x


def unet(size: int, width: int) -> keras.Model:
    """Three levels down and up, with skips."""
    volume = keras.Input((size, size, size, 1))
    x, skips = volume, []
    for level in range(2):
        x = block(x, width << level)
        skips.append(x)
        x = keras.layers.Conv3D(width << (level + 1), 2, strides=2)(x)
    x = block(x, width << 2)
    for level in reversed(range(2)):
        x = keras.layers.Conv3DTranspose(width << level, 2, strides=2)(x)
        x = block(keras.layers.Concatenate()([x, skips[level]]), width << level)
    return keras.Model(volume, keras.layers.Conv3D(1, 1, dtype="float32")(x))


def volumes(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with balls, and where the balls are."""
    rng = np.random.default_rng(SEED)
    grid = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"), -1)
    masks = np.zeros((count, size, size, size, 1), np.float32)
    for mask in masks:
        for _ in range(3):
            distance = np.linalg.norm(grid - rng.uniform(0, size, 3), axis=-1)
            mask[distance < rng.uniform(0.1, 0.25) * size] = 1
    return (masks + rng.normal(0, 0.5, masks.shape)).astype(np.float32), masks


class StepTimes(keras.callbacks.Callback):
    """Seconds of each step after the first two, which trace and warm up."""

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.seconds.append(time.perf_counter() - self._start)

    def median(self) -> float:
        return float(np.median(self.seconds[2:] or self.seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=32, help="of the volumes, in voxels")
    parser.add_argument("--width", type=int, default=8, help="channels of the first level")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--volumes", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--policy", default="float32", help="Keras dtype policy")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args()

    keras.config.set_dtype_policy(options.policy)
    x, masks = volumes(options.volumes, options.size)
    weights, medians = None, {}
    for way in ("stock", "fused"):
        keras.utils.set_random_seed(SEED)
        model = unet(options.size, options.width)
        weights = weights or model.get_weights()
        model.set_weights(weights)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        # TensorFlow optimizes the graph so; with jit_compile=True it is rewritten when traced.
        model.compile(keras.optimizers.Adam(1e-2), loss, jit_compile=False)
        norms = sum(isinstance(la, keras.layers.GroupNormalization) for la in model.layers)
        where = "a GPU" if tf.config.list_physical_devices("GPU") else "the CPU"
        print(f"{way}: {norms} instance norms, {model.count_params():,} weights, on {where}")
        nv_norms_rewriter.clear_report()
        times = StepTimes()
        off = nv_norms_rewriter.disabled() if way == "stock" else contextlib.nullcontext()
        with off:
            history = model.fit(
                x,
                masks,
                batch_size=options.batch,
                epochs=options.epochs,
                verbose=0 if options.quiet else 1,
                callbacks=[times],
            )
        medians[way] = times.median()
        print(f"  {nv_norms_rewriter.report().summary()}")
        print(
            f"  loss {history.history['loss'][-1]:.4f}, step {1e3 * medians[way]:.1f} ms (median)"
        )
    print(f"speed-up of a training step: {medians['stock'] / medians['fused']:.2f}")


if __name__ == "__main__":
    main()
