"""model.fit as it is, which Keras compiles with XLA where there is a GPU: stock against fused.

Usage: python benchmarks/xla_training.py [--models bert convnext unet3d] [--xla all] [--out FILE]

Each model of benchmarks/training.py is compiled with compile("adam", "mse") in mixed_float16 and
nothing else said, and trained by fit() on one random batch over and over. Both ways start from the
same weights and seeds. The first fit() is one step: tracing, compiling, autotuning. Then the losses
of some steps are compared, and rounds of steps are timed in turns. --small is for a CPU, where XLA
has to be asked for.

XLA_FLAGS=--xla_gpu_per_fusion_autotune_cache_dir=FOLDER spares the second way much of the
autotuning; the first steps are not comparable then.
"""

from __future__ import annotations

import argparse
import pathlib
import platform
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import nv_norms_rewriter
from training import _MODELS, _SEED

_WAYS = {"stock": "none", "fused": "auto"}  # configure(xla=...)


class Losses(keras.callbacks.Callback):
    """The loss after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        self.values.append(float((logs or {})["loss"]))


class Clock(keras.callbacks.Callback):
    """The time of the steps after the first."""

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        if batch == 0:
            tf.test.experimental.sync_devices()
            self.start = time.perf_counter()

    def on_train_end(self, logs: dict[str, object] | None = None) -> None:
        tf.test.experimental.sync_devices()
        self.seconds = time.perf_counter() - self.start


class Run:
    """A model in training, one way."""

    def __init__(self, name: str, way: str, weights: list[np.ndarray] | None, small: bool) -> None:
        keras.utils.set_random_seed(_SEED)
        nv_norms_rewriter.configure(xla=_WAYS[way])
        nv_norms_rewriter.clear_report()
        self.model, x, y = _MODELS[name](small)
        if weights is not None:
            self.model.set_weights(weights)
        self.weights = self.model.get_weights()
        self.model.compile("adam", "mse", jit_compile=True if small else "auto")
        with tf.device("/CPU:0"):
            self.batch = tf.data.Dataset.from_tensors((x, y)).cache()
        start = time.perf_counter()
        losses = Losses()
        self._fit(1, losses)
        self.first = time.perf_counter() - start
        self.report = nv_norms_rewriter.report()
        self._fit(5, losses)
        self.losses = losses.values
        self.times: list[float] = []

    def _fit(self, steps: int, callback: keras.callbacks.Callback) -> None:
        data = self.batch.repeat(steps).prefetch(2)
        self.model.fit(data, verbose=0, callbacks=[callback])

    def round(self, steps: int) -> None:
        clock = Clock()
        self._fit(steps + 1, clock)
        self.times.append(1e3 * clock.seconds / steps)


def measure(name: str, rounds: int, steps: int, small: bool) -> dict[str, object]:
    keras.config.set_dtype_policy("mixed_float16")
    runs: dict[str, Run] = {}
    for way in _WAYS:
        weights = runs["stock"].weights if runs else None
        runs[way] = Run(name, way, weights, small)
    for _ in range(rounds):
        for run in runs.values():
            run.round(steps)
    stock, fused = runs["stock"], runs["fused"]
    medians = {way: statistics.median(run.times) for way, run in runs.items()}
    pairs = zip(stock.losses, fused.losses, strict=True)
    print(fused.report.summary(), flush=True)
    return {
        "model": name,
        "xla": _WAYS["fused"],
        "forward": sum(r.fused and r.direction == "forward" for r in fused.report),
        "backward": sum(r.fused and r.direction == "backward" for r in fused.report),
        "left": sum(not r.fused for r in fused.report),
        "stock ms": f"{medians['stock']:.2f}",
        "fused ms": f"{medians['fused']:.2f}",
        "stock / fused": f"{medians['stock'] / medians['fused']:.3f}",
        "spread": "{:.1f} %, {:.1f} %".format(
            *(100 * (max(r.times) - min(r.times)) / medians[w] for w, r in runs.items())
        ),
        "first step s": f"{stock.first:.1f}, {fused.first:.1f}",
        "loss first, last": f"{fused.losses[0]:.4f}, {fused.losses[-1]:.4f}",
        "losses apart": f"{max(abs(a - b) / abs(a) for a, b in pairs):.1e}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(_MODELS), choices=list(_MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="tiny models, to see that it works")
    parser.add_argument("--xla", choices=("auto", "all"), default="auto", help="what to fuse")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    _WAYS["fused"] = options.xla
    gpus = tf.config.list_physical_devices("GPU")
    names = [tf.config.experimental.get_device_details(g).get("device_name", "GPU") for g in gpus]
    lines = [
        f"{', '.join(names) or platform.processor() or 'CPU'}, TensorFlow {tf.__version__}, Keras "
        f"{keras.__version__}, {time.strftime('%Y-%m-%d')}, median of {options.rounds} rounds of "
        f"{options.steps} steps, in turns",
        "",
    ]
    for name in options.models:
        row = measure(name, options.rounds, options.steps, options.small)
        if len(lines) == 2:
            lines += [f"| {' | '.join(row)} |", "|" + "---|" * len(row)]
        lines.append(f"| {' | '.join(map(str, row.values()))} |")
        print("\n".join(lines), flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
