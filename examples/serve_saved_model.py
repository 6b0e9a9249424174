"""Loads a SavedModel and serves it with its norms fused; the file stays as it is.

Without a path it first exports a small text encoder of its own. What matters is the order:
nv_norms_rewriter is imported before the signature first runs; that is when TensorFlow optimizes it.

Usage: python examples/serve_saved_model.py [PATH] [--signature serving_default] [--requests 50]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np
import tensorflow as tf

import nv_norms_rewriter

BATCH = 8  # where the signature leaves a size open
SEED = 5


def export(path: pathlib.Path) -> None:
    """A small transformer encoder; any other program could have written this SavedModel."""
    import keras

    keras.utils.set_random_seed(SEED)
    width = 64
    x = inputs = keras.Input((32, width))
    for _ in range(2):
        attended = keras.layers.MultiHeadAttention(4, width // 4)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(4 * width, "gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(width)(hidden))
    keras.Model(inputs, x).export(path, verbose=False)


def requests(signature: Any) -> dict[str, tf.Tensor]:
    """Random inputs of the signature's shapes and types."""
    rng = np.random.default_rng(SEED)
    tensors = {}
    for name, spec in signature.structured_input_signature[1].items():
        shape = [BATCH if size is None else size for size in spec.shape]
        values = rng.normal(size=shape) if spec.dtype.is_floating else np.ones(shape)
        tensors[name] = tf.constant(values, spec.dtype)
    return tensors


def load(path: pathlib.Path, name: str) -> Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """The signature of a freshly loaded copy: TensorFlow optimizes each copy on its own."""
    loaded = tf.saved_model.load(str(path))
    if name not in loaded.signatures:
        names = ", ".join(loaded.signatures)
        raise SystemExit(f"{path} has no signature {name!r}; it has: {names}")
    signature = loaded.signatures[name]

    def serve(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return signature(**inputs)

    serve.inputs = requests(signature)
    serve.keep = loaded  # its variables live as long as it does
    return serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", nargs="?", type=pathlib.Path, help="default: one of its own")
    parser.add_argument("--signature", default="serving_default")
    parser.add_argument("--requests", type=int, default=50)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = options.path or pathlib.Path(folder) / "encoder"
        if options.path is None:
            export(path)
        stock, fused = (load(path, options.signature) for _ in range(2))
    inputs = fused.inputs
    with nv_norms_rewriter.disabled():
        expected = stock(inputs)
    nv_norms_rewriter.clear_report()
    got = fused(inputs)
    print(nv_norms_rewriter.report())

    apart = max(
        float(tf.reduce_max(tf.abs(tf.cast(got[key] - expected[key], tf.float64))))
        for key in expected
    )
    print(f"largest difference of an output: {apart:.2e}")
    times: dict[str, list[float]] = {"stock": [], "fused": []}
    for _ in range(options.requests):
        for way, serve in (("stock", stock), ("fused", fused)):
            start = time.perf_counter()
            for value in serve(inputs).values():
                value.numpy()
            times[way].append(1e3 * (time.perf_counter() - start))
    medians = {way: statistics.median(values) for way, values in times.items()}
    print(f"request: stock {medians['stock']:.3f} ms, fused {medians['fused']:.3f} ms (median)")
    print(f"speed-up of a request: {medians['stock'] / medians['fused']:.2f}")


if __name__ == "__main__":
    main()
