"""How many Transposes of whole tensors are left in the training steps of whole models.

The graphs come from TensorFlow's own passes with a virtual GPU (tests/layout/layout_emulation.py),
so no GPU is needed, and nothing is timed. Three graphs of each model of models.py, at its small
size: TensorFlow's ("stock"), the same after this package's pass ("fused"), and TensorFlow's of the
model with its norms taken out ("no norms"). benchmark_models.py times the same three on a GPU.

Counted are Transposes of more than 16 KiB, larger than any parameter's, and the bytes that they
transpose; an unknown batch counts as 2.

Usage: python benchmarks/layout.py [--models unet3d ...] [--policies float32 ...] [--csv FILE]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "layout")]

import keras  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import tensorflow as tf  # noqa: E402
from layout_emulation import optimize, trace, transposed_bytes  # noqa: E402

LARGE = 16 * 1024


def training_step(model: keras.Model) -> Callable[..., list[tf.Tensor]]:
    """Inputs -> loss and gradients; each element of y has a weight of its own in the loss."""

    def step(*x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            y = tf.cast(model(x[0] if len(x) == 1 else list(x), training=True), tf.float32)
            weights = tf.sin(1.0 + tf.reshape(tf.range(tf.size(y), dtype=tf.float32), tf.shape(y)))
            loss = tf.reduce_sum(y * weights)
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    return step


def measure_model(name: str, policy: str, batch: bool) -> list[dict[str, Any]]:
    """A row for each of the three graphs."""
    keras.utils.set_random_seed(models.SEED)
    keras.config.set_dtype_policy(policy)
    task = models.MODELS[name](True)
    size = len(task.target) if batch else None
    shapes = [[size, *x.shape[1:]] for x in task.model.inputs]
    stock, fused, report = optimize(*trace(training_step(task.model), shapes))
    without = models.without_norms(task)
    no_norms = optimize(*trace(training_step(without.model), shapes))[0]
    norms = [record for record in report if record.kind != "layout"]
    rows = []
    for way, graph in (("stock", stock), ("fused", fused), ("no norms", no_norms)):
        large = [size for size in transposed_bytes(graph) if size > LARGE]
        rows.append(
            {
                "model": name,
                "policy": policy,
                "batch": "known" if batch else "unknown",
                "way": way,
                "transposes": len(large),
                "mib": f"{sum(large) / 2**20:.2f}",
                "norms": len(norms) if way == "stock" else "",
                "fused": sum(record.fused for record in norms) if way == "fused" else "",
            }
        )
    return rows


def main() -> None:
    parser = measure.parser(__doc__)
    names = ["unet3d", "diffusion", "convnext", "resnet"]  # those with convolutions
    policies = ["float32", "mixed_float16"]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--policies", nargs="+", choices=policies, default=policies)
    options = parser.parse_args()
    print(measure.heading())
    for name in options.models:
        for policy in options.policies:
            for batch in (True, False):
                rows = measure_model(name, policy, batch)
                cells = (f"{r['way']} {r['transposes']} ({r['mib']} MiB)" for r in rows)
                print(f"Transposes: {name} {policy} {rows[0]['batch']} batch:", *cells, flush=True)
                measure.write(options.csv, "layout", rows)


if __name__ == "__main__":
    main()
