"""Keras layers on the CPU in a tf.function: one elementwise op, stock, XLA and fused, in one run.

usage: python benchmarks/kernels/cpu_layers.py [--layers layer rms group] [--shapes 4096x768 ...]
       [--policy float32] [--threads 2] [--seconds 0.5]

Prints a Markdown table of microseconds, the median of calls taken in turns: `x * 1.5` on the same
tensor, then the layer's forward and its forward + backward (to x and the weights) as TensorFlow
runs them (oneDNN on), as XLA compiles them, and fused; and how the fused ones compare. Outputs are
fresh tensors, as in any model. x and its gradient are of the type that the policy computes in.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import nv_norms_rewriter  # noqa: E402

SHAPES = {
    "layer": ["1x1", "1x16", "8x64", "64x256", "342x768", "2048x128", "4096x768", "1024x4096",
              "32768x768", "131072x64", "1024x32768"],
    "rms": ["1x1", "64x256", "342x768", "4096x768", "32768x768"],
    "group": ["1x1x1x32", "1x8x8x32", "2x64x64x32", "8x64x64x64", "8x128x128x128"],
}  # fmt: skip


def make(kind: str, channels: int) -> keras.layers.Layer:
    if kind == "group":
        return keras.layers.GroupNormalization(groups=min(32, channels))
    return {"layer": keras.layers.LayerNormalization, "rms": keras.layers.RMSNormalization}[kind]()


def in_turns(calls: dict[str, Callable], seconds: float) -> dict[str, float]:
    """The median time of each call in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(times[next(iter(calls))]) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(of) for name, of in times.items()}


def measure(kind: str, shape: list[int], seconds: float) -> dict[str, float]:
    """Microseconds of every variant."""
    rng = np.random.default_rng(0)
    dtype = keras.config.dtype_policy().compute_dtype
    x = tf.cast(rng.standard_normal(shape, np.float32), dtype)
    dy = tf.cast(rng.standard_normal(shape, np.float32), dtype)
    layer = make(kind, shape[-1])
    layer.build(shape)

    def forward(x: tf.Tensor) -> tf.Tensor:
        return layer(x)

    def both(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return [y, *tape.gradient(y, [x, *layer.trainable_variables], output_gradients=dy)]

    forwards = {"x * 1.5": tf.function(lambda x: x * 1.5, jit_compile=False)}
    boths = {}
    for name, jit in (("stock", False), ("XLA", True), ("fused", False)):
        # each graph is optimized when it first runs
        with nv_norms_rewriter.disabled() if name != "fused" else contextlib.nullcontext():
            forwards[name] = tf.function(forward, jit_compile=jit)
            forwards[name](x)
            boths[name] = tf.function(both, jit_compile=jit)
            boths[name](x, dy)

    # one after another: each as it runs in a loop of its own, the output of one call freed before
    out = in_turns({name: lambda f=f: f(x) for name, f in forwards.items()}, seconds)
    more = in_turns({name: lambda f=f: f(x, dy) for name, f in boths.items()}, seconds)
    return out | {f"{name} both": value for name, value in more.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--shapes", nargs="+", help="of x, e.g. 4096x768; by default a list")
    parser.add_argument("--policy", default="float32", help="Keras' dtype policy")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each variant")
    options = parser.parse_args()
    keras.config.set_dtype_policy(options.policy)
    size = tf.as_dtype(keras.config.dtype_policy().compute_dtype).size
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    print(
        f"{platform.processor() or platform.machine()}, {options.threads} threads, TensorFlow "
        f"{tf.__version__}, Keras {keras.__version__}; {options.policy}, microseconds\n"
    )
    columns = ["x * 1.5", "stock", "XLA", "fused"]
    ratios = ["fused / x * 1.5", "stock / fused", "XLA / fused"]
    header = ["layer", "x", "MB", *columns, *ratios]
    header += [f"{name} both" for name in columns[1:]] + [f"{name} both" for name in ratios[1:]]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    for kind in options.layers:
        for text in options.shapes or SHAPES[kind]:
            shape = [int(edge) for edge in text.split("x")]
            r = measure(kind, shape, options.seconds)
            r["fused / x * 1.5"] = r["fused"] / r["x * 1.5"]
            for peer in ("stock", "XLA"):
                r[f"{peer} / fused"] = r[peer] / r["fused"]
                r[f"{peer} / fused both"] = r[f"{peer} both"] / r["fused both"]
            cells = [
                kind,
                text,
                f"{1e-6 * size * np.prod(shape):.3g}",
                *(f"{r[c]:.4g}" for c in header[3:]),
            ]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
