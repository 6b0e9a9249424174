"""The step time of whole models in training, stock against fused, in one process.

Usage: python benchmarks/training.py [--models bert convnext unet3d] [--steps 20] [--small]

Each model trains with Adam in mixed_float16 inside one tf.function that XLA does not compile.
Both ways start from the same weights and see the same random batch; their steps are timed in
turns, and the medians are compared. The losses of both have to agree within rounding.
"""

from __future__ import annotations

import argparse
import pathlib
import platform
import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import nv_norms_rewriter

_SEED = 7


def bert(small: bool) -> tuple[keras.Model, object, np.ndarray]:
    """BertBackbone base, batch 32 of 512 tokens."""
    import keras_hub

    layers, width, batch, length = (2, 64, 2, 16) if small else (12, 768, 32, 512)
    model = keras_hub.models.BertBackbone(
        vocabulary_size=30522,
        num_layers=layers,
        num_heads=width // 64,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    random = np.random.default_rng(_SEED)
    tokens = random.integers(0, 30522, (batch, length)).astype(np.int32)
    x = {
        "token_ids": tokens,
        "segment_ids": np.zeros_like(tokens),
        "padding_mask": np.ones_like(tokens),
    }
    out = keras.layers.Dense(1, dtype="float32")(model.output["pooled_output"])
    return keras.Model(model.input, out), x, random.normal(size=(batch, 1)).astype(np.float32)


def convnext(small: bool) -> tuple[keras.Model, object, np.ndarray]:
    """ConvNeXtTiny, batch 64 of 224 x 224 images."""
    batch, size = (2, 64) if small else (64, 224)
    model = keras.applications.ConvNeXtTiny(
        weights=None, input_shape=(size, size, 3), classes=1, classifier_activation=None
    )
    random = np.random.default_rng(_SEED)
    x = random.normal(size=(batch, size, size, 3)).astype(np.float32)
    return model, x, random.normal(size=(batch, 1)).astype(np.float32)


def unet3d(small: bool) -> tuple[keras.Model, object, np.ndarray]:
    """A 3-D U-Net with instance norm, batch 2 of 96^3 volumes."""
    size, width = (16, 8) if small else (96, 32)

    def block(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
        for _ in range(2):
            x = keras.layers.Conv3D(channels, 3, padding="same", use_bias=False)(x)
            x = keras.layers.GroupNormalization(groups=-1)(x)
            x = keras.layers.LeakyReLU(0.01)(x)
        return x

    image = keras.Input((size, size, size, 1))
    x, skips = image, []
    for level in range(3):
        x = block(x, width << level)
        skips.append(x)
        x = keras.layers.Conv3D(width << (level + 1), 2, strides=2)(x)
    x = block(x, width << 3)
    for level in reversed(range(3)):
        x = keras.layers.Conv3DTranspose(width << level, 2, strides=2)(x)
        x = block(keras.layers.Concatenate()([x, skips[level]]), width << level)
    out = keras.layers.Conv3D(1, 1, dtype="float32")(x)
    random = np.random.default_rng(_SEED)
    x = random.normal(size=(2, size, size, size, 1)).astype(np.float32)
    return keras.Model(image, out), x, random.normal(size=x.shape).astype(np.float32)


_MODELS: dict[str, Callable[[bool], tuple[keras.Model, object, np.ndarray]]] = {
    "bert": bert,
    "convnext": convnext,
    "unet3d": unet3d,
}


def _step(model: keras.Model, x: object, target: tf.Tensor) -> Callable[[], tf.Tensor]:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-4))
    optimizer.build(model.trainable_variables)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(x, training=False), tf.float32) - target))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def measure(name: str, steps: int, small: bool) -> dict[str, object]:
    """Trains one model both ways; times in milliseconds."""
    keras.utils.set_random_seed(_SEED)
    keras.config.set_dtype_policy("mixed_float16")
    losses: dict[str, list[float]] = {"stock": [], "fused": []}
    times: dict[str, list[float]] = {"stock": [], "fused": []}
    run = {}
    weights = None
    for way in ("stock", "fused"):
        model, x, target = _MODELS[name](small)
        weights = weights or model.get_weights()
        model.set_weights(weights)
        run[way] = _step(model, tf.nest.map_structure(tf.constant, x), tf.constant(target))
        nv_norms_rewriter.clear_report()
        if way == "stock":
            with nv_norms_rewriter.disabled():
                losses[way].append(float(run[way]()))
        else:
            losses[way].append(float(run[way]()))
    report = nv_norms_rewriter.report()
    for _ in range(steps):
        for way in ("stock", "fused"):
            start = time.perf_counter()
            losses[way].append(float(run[way]()))
            times[way].append(1e3 * (time.perf_counter() - start))
    stock, fused = (statistics.median(times[way][2:]) for way in ("stock", "fused"))
    apart = max(abs(a - b) / abs(a) for a, b in zip(losses["stock"], losses["fused"], strict=True))
    return {
        "model": name,
        "forward": sum(r.fused and r.direction == "forward" for r in report),
        "backward": sum(r.fused and r.direction == "backward" for r in report),
        "left": sum(not r.fused for r in report),
        "stock ms": f"{stock:.1f}",
        "fused ms": f"{fused:.1f}",
        "speed-up": f"{stock / fused:.2f}",
        "loss first, last": f"{losses['fused'][0]:.4f}, {losses['fused'][-1]:.4f}",
        "losses apart": f"{apart:.1e}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(_MODELS), default=list(_MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    devices = tf.config.list_physical_devices("GPU")
    where = (
        tf.config.experimental.get_device_details(devices[0]).get("device_name", "GPU")
        if devices
        else f"CPU ({platform.processor() or platform.machine()})"
    )
    lines = [
        f"{where}, TensorFlow {tf.__version__}, Keras {keras.__version__}, "
        f"{time.strftime('%Y-%m-%d')}, median of {options.steps} steps, in turns",
        "",
    ]
    for i, name in enumerate(options.models):
        row = measure(name, options.steps, options.small)
        if i == 0:
            lines += ["| " + " | ".join(row) + " |", "|---" * len(row) + "|"]
        lines.append("| " + " | ".join(str(v) for v in row.values()) + " |")
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
