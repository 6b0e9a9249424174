"""model.fit as it is, which Keras compiles with XLA where there is a GPU: stock against fused.

Usage: python benchmarks/xla_training.py [--models bert convnext unet3d unet3d_128] [--xla auto all]
       [--first N] [--mirrored [--compiled]] [--csv FILE] [--small]

Each model is compiled with compile("adam", "mse") in mixed_float16 and nothing else said, and
trained by fit() on one random batch over and over; "auto" and "all" are what configure(xla=...)
has fused. All ways start from the same weights and seeds. The first fit() is one step: tracing,
compiling, autotuning, of which the second way finds much done. Then the losses of some steps are
compared ("apart": the largest relative difference to stock), and rounds of steps are timed in
turns. --small is for a CPU, where XLA has to be asked for.

--first N takes N more first steps of each way in turns, from new models, when all ways find the
autotuning done: what remains is tracing and compiling.

--mirrored trains on all GPUs of the machine, each with a batch of that size, under a
MirroredStrategy. Keras leaves XLA off there; with --compiled XLA compiles forward and backward of
each replica, as examples/train_on_gpus.py does.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import keras
import measure
import models
import numpy as np
import tensorflow as tf

import nv_norms_rewriter

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from train_on_gpus import CompiledReplicas


class Losses(keras.callbacks.Callback):
    """The loss after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        self.values.append(float((logs or {})["loss"]))


class Run:
    """A model in training, one way."""

    def __init__(self, name: str, way: str, weights: list[np.ndarray] | None, options: Any) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        keras.utils.set_random_seed(models.SEED)
        self.is_stock = way == "stock"
        nv_norms_rewriter.configure(xla=None if self.is_stock else way)
        nv_norms_rewriter.clear_report()
        task = models.MODELS[name](options.small)
        self.model = task.model
        if options.compiled:
            self.model = CompiledReplicas(task.model.input, task.model.output)
        if weights is not None:
            self.model.set_weights(weights)
        self.weights = self.model.get_weights()
        xla = True if options.small and not options.mirrored else "auto"
        self.model.compile("adam", "mse", jit_compile=xla)
        with tf.device("/CPU:0"):
            batch = tf.nest.map_structure(
                lambda value: np.concatenate([value] * replicas), (task.x, task.target)
            )
            batch = tf.data.Dataset.from_tensors(batch).cache()
        self.data = batch.repeat().prefetch(2)
        start = time.perf_counter()
        losses = Losses()
        self._fit(1, losses)
        self.first = time.perf_counter() - start
        self.report = nv_norms_rewriter.report()
        self._fit(5, losses)
        self.losses = losses.values

    def _fit(self, steps: int, callback: keras.callbacks.Callback) -> None:
        with self._switched():
            self.model.fit(self.data, steps_per_epoch=steps, verbose=0, callbacks=[callback])

    def _switched(self) -> contextlib.AbstractContextManager[object]:
        return nv_norms_rewriter.disabled() if self.is_stock else contextlib.nullcontext()

    def round(self, steps: int) -> float:
        with self._switched():
            return measure.fit_step(self.model, self.data, steps)


def measure_model(name: str, options: Any) -> list[dict[str, object]]:
    """A row for each way."""
    keras.config.set_dtype_policy("mixed_float16")  # clear_session() resets it
    runs: dict[str, Run] = {}
    for way in ["stock", *options.xla]:
        weights = runs["stock"].weights if runs else None
        runs[way] = Run(name, way, weights, options)
        if way != "stock":
            print(f"{way}: {runs[way].report.summary()}", flush=True)
    again: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(options.first):
        for way in runs:
            again[way].append(Run(name, way, runs["stock"].weights, options).first)
    for run in runs.values():  # a new seed has TensorFlow optimize what XLA does not compile anew
        run.round(1)
    taken = measure.turns(
        {way: lambda run=run: run.round(options.steps) for way, run in runs.items()}, options.rounds
    )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    on = f" on {replicas} GPUs" if replicas > 1 else ""
    rows = []
    for way, run in runs.items():
        ms = statistics.median(taken[way])
        pairs = zip(run.losses, runs["stock"].losses, strict=True)
        rows.append(
            {
                "model": name + on + (", compiled" if options.compiled else ""),
                "policy": keras.config.dtype_policy().name,
                "way": way,
                "ms": f"{ms:.3f}",
                "spread": f"{(max(taken[way]) - min(taken[way])) / ms:.3f}",
                "fused_forward": sum(r.direction == "forward" for r in run.report.fused),
                "fused_backward": sum(r.direction == "backward" for r in run.report.fused),
                "left": len(run.report.refused),
                "first_step_s": f"{run.first:.1f}",
                "first_again_s": f"{statistics.median(again[way]):.2f}" if again[way] else "",
                "loss_first": f"{run.losses[0]:.4f}",
                "loss_last": f"{run.losses[-1]:.4f}",
                "apart": f"{max(abs(a - b) / abs(b) for a, b in pairs):.1e}",
            }
        )
    return rows


def main() -> None:
    parser = measure.parser(__doc__)
    names = ["bert", "convnext", "unet3d", "unet3d_128"]
    parser.add_argument("--models", nargs="+", default=names, choices=names)
    parser.add_argument("--steps", type=int, default=8, help="in a round")
    parser.add_argument("--first", type=int, default=0, help="how many more first steps")
    parser.add_argument("--small", action="store_true", help="tiny models, to see that it works")
    parser.add_argument("--mirrored", action="store_true", help="on all GPUs of the machine")
    parser.add_argument("--compiled", action="store_true", help="XLA compiles each replica's part")
    parser.add_argument("--xla", nargs="+", choices=("auto", "all"), default=["auto"])
    options = parser.parse_args()
    options.rounds = options.rounds or 9
    print(measure.heading())
    strategy = (
        tf.distribute.MirroredStrategy() if options.mirrored else tf.distribute.get_strategy()
    )
    for name in options.models:
        with strategy.scope():
            rows = measure_model(name, options)
        for row in rows:
            print(*(f"{key} {value}" for key, value in row.items()), sep=", ", flush=True)
        measure.write(options.csv, "xla_training", rows)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
