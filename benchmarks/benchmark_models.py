"""Whole models, training and prediction: stock, XLA, ours, ours inside XLA.

All ways of one model start from the same weights and see the same random batch. "fused" counts the
normalizations that the rewriter fused, forward + backward, beside the norm layers in the model;
"apart" is the largest relative difference to the first way, over the losses of five steps in
training, over y in prediction; "peak" is what a step holds on the GPU beyond what lasts. "no norms"
is the model with its norms taken out, but their parameters left to the optimizer: what is left to
gain (not for BERT, Llama and Qwen3, whose norms are inside their layers, nor for the generator,
whose norms do more).

Usage: python benchmarks/benchmark_models.py [--models bert llama qwen3 convnext unet3d diffusion
       guided generator dit resnet] [--modes train predict] [--ways ...] [--small | --full]
       [--policy mixed_float16] [--csv FILE]
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import keras
import measure
import models
import numpy as np
import tensorflow as tf

import nv_norms_rewriter

# Column -> (compiled by XLA, rewriter on, what it fuses there; see nv_norms_rewriter.configure)
WAYS = {
    "stock": (False, False, "auto"),
    "fused": (False, True, "auto"),
    "no norms": (False, False, "auto"),
    "XLA": (True, False, "auto"),
    "fused in XLA": (True, True, "auto"),
    "all fused in XLA": (True, True, "all"),
}
_STEPS = 5  # whose losses are compared


def _train(task: models.Task, xla: bool) -> Callable[[], tf.Tensor]:
    """One step of Adam, the loss scaled where the policy is float16."""
    model = task.model
    optimizer = keras.optimizers.Adam(1e-4)
    if keras.config.dtype_policy().compute_dtype == "float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    x = tf.nest.map_structure(tf.constant, task.x)
    target = tf.constant(task.target)

    @tf.function(jit_compile=xla)
    def step(x: Any, target: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.cast(model(x, training=True), tf.float32)
            loss = tf.reduce_mean(tf.square(y - target))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return lambda: step(x, target)


def _predict(task: models.Task, xla: bool) -> Callable[[], tf.Tensor]:
    x = tf.nest.map_structure(tf.constant, task.x)
    call = tf.function(lambda x: task.model(x, training=False), jit_compile=xla)
    return lambda: call(x)


def _distance(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    pairs = zip(got, expected, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def measure_model(name: str, mode: str, options: Any) -> list[dict[str, Any]]:
    """A row for each way."""
    keras.config.set_dtype_policy(options.policy)  # clear_session() resets it
    tasks: dict[str, models.Task] = {}
    for way in options.ways:
        keras.utils.set_random_seed(models.SEED)
        task = models.MODELS[name](options.small)
        if way == "no norms":
            task = models.without_norms(task)
        elif tasks:
            task.model.set_weights(next(iter(tasks.values())).model.get_weights())
        if task:
            tasks[way] = task
    calls: dict[str, Callable[[], tf.Tensor]] = {}
    columns: dict[str, dict[str, Any]] = {}
    expected = None
    for way, task in tasks.items():
        xla, rewriter, policy = WAYS[way]
        nv_norms_rewriter.configure(xla=policy)
        # Tracing comes into the first call, so the switch covers both.
        off = contextlib.nullcontext() if rewriter else nv_norms_rewriter.disabled()
        with off:
            call = calls[way] = (_train if mode == "train" else _predict)(task, xla)
            forward, backward = measure.first_call(call, rewriter)
        steps = _STEPS if mode == "train" else 1
        got = [call().numpy().astype(np.float64) for _ in range(steps)]
        expected = expected or got
        peak = measure.peak_bytes(call)
        columns[way] = {
            "norms": task.norms,
            "fused_forward": forward,
            "fused_backward": backward,
            "apart": "" if way == "no norms" else f"{_distance(got, expected):.1e}",
            "peak_mib": "" if peak is None else f"{peak / 2**20:.0f}",
        }
    return [
        {
            "model": name,
            "mode": mode,
            "size": "small" if options.small else "full",
            "policy": keras.config.dtype_policy().name,
            "way": way,
            "ms": f"{ms:.3f}",
            **columns[way],
        }
        for way, ms in measure.times(calls, options.repeat, options.rounds).items()
    ]


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['way']}: {float(row['ms']):0.2f} ms"
    if WAYS[row["way"]][1]:
        text += f" ({row['fused_forward']}+{row['fused_backward']} of {row['norms']} norms)"
    return text + (f" {row['peak_mib']} MiB" if row["peak_mib"] else "")


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=models.MODELS, default=list(models.MODELS))
    parser.add_argument("--modes", nargs="+", choices=["train", "predict"])
    default = [way for way in WAYS if way != "all fused in XLA"]
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=default)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", default=not measure.has_gpu())
    size.add_argument("--full", dest="small", action="store_false")
    policy = "mixed_float16" if measure.has_gpu() else "float32"
    parser.add_argument("--policy", default=policy)
    options = parser.parse_args()
    print(measure.heading())
    print(f"policy {options.policy}, {'small' if options.small else 'full'} size; ms a step")
    for name in options.models:
        for mode in options.modes or ["train", "predict"]:
            rows = measure_model(name, mode, options)
            print(f"Model: {name} {mode} " + "; ".join(map(_cell, rows)), flush=True)
            measure.write(options.csv, "models", rows)
            keras.backend.clear_session()
            gc.collect()


if __name__ == "__main__":
    main()
