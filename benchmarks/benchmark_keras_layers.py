"""Three norm layers on images, trained by model.fit; and what the formula of the variance decides.

The experiment behind keras.ops.moments: batches of 128 images of 224 x 224 x 3 through three
BatchNormalization, GroupNormalization(3) or LayerNormalization layers, mse, Adam. The question was
whether a layer should take the fast variance, mean(x^2) - mean(x)^2, which reads x once, or the
stable one, mean((x - mean)^2), which reads it twice. A fused op reads it once from memory and
computes the stable one: the second table shows what each makes of inputs that are easy and hard.

Columns of the first table: "current" is the Keras of today, "fast" and "stable" its layers with
that variance, "fused" the current ones with the rewriter on, "XLA" the current ones compiled, and
"fused in XLA" both, as Keras itself has it on a GPU. Each is timed in fit, where a GPU spends most
of a step on fetching the images from the host, and as a training step on images that are there.

Usage: python benchmarks/benchmark_keras_layers.py [--csv FILE] [--batch 128] [--size 224]
"""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

import keras
import measure
import numpy as np
import tensorflow as tf

import nv_norms
import nv_norms_rewriter


def fast_moments(x: Any, axes: Any, keepdims: bool = False, **_: Any) -> tuple[Any, Any]:
    """One pass; cancels where the mean is large."""
    mean = tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(x), axes, keepdims=True) - tf.square(mean)
    return _shaped(mean, tf.maximum(variance, 0), axes, keepdims)


def stable_moments(x: Any, axes: Any, keepdims: bool = False, **_: Any) -> tuple[Any, Any]:
    """Two passes."""
    mean = tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axes, keepdims=True)
    return _shaped(mean, variance, axes, keepdims)


def _shaped(mean: Any, variance: Any, axes: Any, keepdims: bool) -> tuple[Any, Any]:
    if keepdims:
        return mean, variance
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


@contextlib.contextmanager
def moments_of_keras(function: Any) -> Any:
    """Keras' layers with another formula of the variance, inside."""
    import keras.src.backend.tensorflow.nn as backend
    from keras.src import ops
    from keras.src.layers.normalization import batch_normalization, group_normalization

    modules = [ops, ops.nn, backend, batch_normalization.ops, group_normalization.ops]
    modules = list({id(module): module for module in modules}.values())
    before = [module.moments for module in modules]
    layer_norm = ops.layer_normalization
    for module in modules:
        module.moments = function

    def with_moments(x: Any, gamma: Any, beta: Any, axis: Any, epsilon: float, **_: Any) -> Any:
        mean, variance = function(x, axis, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + epsilon) * gamma + beta

    ops.layer_normalization = with_moments
    try:
        yield
    finally:
        ops.layer_normalization = layer_norm
        for module, moments in zip(modules, before, strict=True):
            module.moments = moments


LAYERS = {
    "BatchNormalization": keras.layers.BatchNormalization,
    "GroupNormalization": lambda: keras.layers.GroupNormalization(groups=3),
    "LayerNormalization": keras.layers.LayerNormalization,
}
# Column -> (moments, compiled by XLA, rewriter on)
WAYS = {
    "current": (None, False, False),
    "fast": (fast_moments, False, False),
    "stable": (stable_moments, False, False),
    "fused": (None, False, True),
    "XLA": (None, True, False),
    "fused in XLA": (None, True, True),
}


class _Training:
    """A model in training, one way."""

    def __init__(self, layer: Any, way: str, options: Any) -> None:
        keras.utils.set_random_seed(1)
        shape = (options.size, options.size, 3)
        inputs = keras.layers.InputLayer(shape=shape)
        self.model = keras.Sequential([inputs, layer(), layer(), layer()])
        rng = np.random.default_rng(2)
        x, y = (rng.uniform(size=(options.batch, *shape)).astype(np.float32) for _ in range(2))
        with tf.device("/CPU:0"):
            self.data = tf.data.Dataset.from_tensors((x, y)).cache().repeat().prefetch(2)
        self.there = tf.constant(x), tf.constant(y)
        self.way, self.steps, self.fused = way, options.steps, 0

    def start(self) -> None:
        """All that happens once; no seed may be set from here on."""
        moments, xla, rewriter = WAYS[self.way]
        nv_norms_rewriter.clear_report()
        with contextlib.ExitStack() as stack:
            if moments:
                stack.enter_context(moments_of_keras(moments))
            if not rewriter:
                stack.enter_context(nv_norms_rewriter.disabled())
            self.model.compile(loss="mse", optimizer="adam", jit_compile=xla)
            measure.fit_step(self.model, self.data, 1)
            if rewriter:
                self.fused = len(nv_norms_rewriter.report().fused)
            self._train = tf.function(self.model.train_step, jit_compile=xla)
            self.step()

    def step(self) -> Any:
        return self._train(self.there)

    def fit(self) -> float:
        return measure.fit_step(self.model, self.data, self.steps)


def measure_layer(name: str, options: Any) -> list[dict[str, Any]]:
    """A row for each way and mode."""
    runs = {way: _Training(LAYERS[name], way, options) for way in WAYS}
    for run in runs.values():
        run.start()
    fits = measure.turns({way: run.fit for way, run in runs.items()}, options.rounds)
    taken = {
        "fit": {way: statistics.median(ms) for way, ms in fits.items()},
        "step": measure.times(
            {way: run.step for way, run in runs.items()}, options.repeat, options.rounds
        ),
    }
    return [
        {
            "layer": name,
            "batch": options.batch,
            "size": options.size,
            "mode": mode,
            "way": way,
            "ms": f"{ms:.3f}",
            "fused": runs[way].fused,
        }
        for mode, times in taken.items()
        for way, ms in times.items()
    ]


# Name -> (dtype, mean, standard deviation of x)
INPUTS = {
    "float32, mean 0, deviation 1": (np.float32, 0.0, 1.0),
    "float32, mean 100, deviation 1": (np.float32, 100.0, 1.0),
    "float32, mean 10000, deviation 1": (np.float32, 10000.0, 1.0),
    "float16, mean 0, deviation 1": (np.float16, 0.0, 1.0),
    "float16, mean 100, deviation 1": (np.float16, 100.0, 1.0),
    "float16, deviation 1000 (x^2 overflows)": (np.float16, 0.0, 1000.0),
    "float16, deviation 1e-4 (x^2 underflows)": (np.float16, 0.0, 1e-4),
}
EPSILON = 1e-12


def _by_moments(x: tf.Tensor, moments: Any, dtype: tf.DType) -> tf.Tensor:
    wide = tf.cast(x, dtype)
    mean, variance = moments(wide, [1], keepdims=True)
    # Where epsilon is 0 in float16, a variance that underflows divides by zero: that is the point.
    return tf.cast((wide - mean) * tf.math.rsqrt(variance + tf.cast(EPSILON, dtype)), x.dtype)


FORMULAS = {
    "fast, in x's type": lambda x: _by_moments(x, fast_moments, x.dtype),
    "stable, in x's type": lambda x: _by_moments(x, stable_moments, x.dtype),
    "fast, in float32": lambda x: _by_moments(x, fast_moments, tf.float32),
    "stable, in float32": lambda x: _by_moments(x, stable_moments, tf.float32),
    "fused": lambda x: nv_norms.fused_layer_norm(x, epsilon=EPSILON).y,
}


def accuracy() -> list[dict[str, Any]]:
    """The largest error of y (its deviation is 1) on 64 rows of 1024, against float64."""
    rows = []
    for name, (dtype, mean, deviation) in INPUTS.items():
        x = np.random.default_rng(3).normal(mean, deviation, (64, 1024)).astype(dtype)
        wide = x.astype(np.float64)
        expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(
            wide.var(1, keepdims=True) + EPSILON
        )
        for formula, compute in FORMULAS.items():
            y = compute(tf.constant(x)).numpy().astype(np.float64)
            finite = np.isfinite(y).all()
            error = np.abs(y - expected).max() if finite else np.inf
            rows.append({"input": name, "formula": formula, "largest_error": f"{error:.2e}"})
    return rows


def main() -> None:
    gpu = measure.has_gpu()
    parser = measure.parser(__doc__)
    parser.add_argument("--batch", type=int, default=128 if gpu else 8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=10 if gpu else 4, help="of fit in a round")
    options = parser.parse_args()
    print(measure.heading())
    print(f"batch {options.batch}, {options.size} x {options.size} x 3; ms a step")
    for name in LAYERS:
        rows = measure_layer(name, options)
        for mode in ("fit", "step"):
            ours = [row for row in rows if row["mode"] == mode]
            columns = " ".join(f"{row['way']}: {float(row['ms']):0.2f}" for row in ours)
            fused = sum(row["fused"] for row in ours)
            print(f"{name} {mode} {columns} | {fused} fused", flush=True)
        measure.write(options.csv, "keras_layers", rows)
    print("\nLargest error of y against float64 (inf: not a number, or infinite)")
    rows = accuracy()
    for name in INPUTS:
        errors = {row["formula"]: row["largest_error"] for row in rows if row["input"] == name}
        columns = "  ".join(f"{formula}: {error}" for formula, error in errors.items())
        print(f"{name:42} {columns}")
    if options.csv:
        measure.write(options.csv.with_stem(options.csv.stem + "_accuracy"), "variance", rows)


if __name__ == "__main__":
    main()
