"""Trains a Transformer on all GPUs of the machine, each GPU's part of the step compiled by XLA.

Under a MirroredStrategy Keras leaves XLA off, and with jit_compile=True TensorFlow refuses the
step, as that sums the gradients over the GPUs. Forward and backward need no other GPU, though:
CompiledReplicas compiles these and leaves the rest to TensorFlow. Without GPUs, two parts of the
CPU stand in for them.

Usage: python examples/train_on_gpus.py [--batch 16] [--length 64] [--width 256] [--blocks 2]
       [--steps 12] [--policy mixed_float16]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import nv_norms_rewriter

SEED = 3


class CompiledReplicas(keras.Model):
    """A model whose `fit` has XLA compile forward and backward of each replica.

    What a step updates together with the other replicas, weights and metrics, is outside of it.
    """

    @tf.function(jit_compile=True)
    def _gradients(self, x: Any, y: Any) -> tuple[Any, Any, Any]:
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
            scaled = self.optimizer.scale_loss(loss)  # in float16, so that small gradients last
        return loss, y_pred, tape.gradient(scaled, [v.value for v in self.trainable_variables])

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        loss, y_pred, gradients = self._gradients(x, y)
        self.optimizer.apply(gradients, self.trainable_variables)
        # compute_loss() divides by the number of replicas, as their gradients are summed.
        loss *= self.distribute_strategy.num_replicas_in_sync
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return self.get_metrics_result()


def transformer(kind: type[keras.Model], length: int, width: int, blocks: int) -> keras.Model:
    """Pre-norm blocks of attention and two dense layers."""
    keras.utils.set_random_seed(SEED)
    tokens = x = keras.Input((length, width))
    for _ in range(blocks):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, width // 4)(y, y)
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * width, "gelu")(y)
        x = x + keras.layers.Dense(width)(y)
    x = keras.layers.LayerNormalization()(x)
    return kind(tokens, keras.layers.Dense(1, dtype="float32")(x))


def replicas() -> tf.distribute.Strategy:
    """One for each GPU, or two on the CPU."""
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    part = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [part, part]
    )
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
    )


class StepTimes(keras.callbacks.Callback):
    """Seconds from step to step after the first two, which trace and compile."""

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        float((logs or {})["loss"])  # waits for the step
        self.ends.append(time.perf_counter())

    def median(self) -> float:
        return float(np.median(np.diff(self.ends)[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=16, help="of each replica")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--policy", default="float32", help="Keras dtype policy")
    options = parser.parse_args()
    if options.steps < 3:
        parser.error(f"--steps: 3 or more, as the first two are not timed; got {options.steps}")

    keras.config.set_dtype_policy(options.policy)
    strategy = replicas()
    batch = options.batch * strategy.num_replicas_in_sync
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(batch, options.length, options.width)).astype(np.float32)
    data = tf.data.Dataset.from_tensors((x, np.sort(x, axis=1)[..., :1])).repeat()
    print(f"{strategy.num_replicas_in_sync} replicas, {options.batch} samples on each")
    for name, kind, fuses in (
        ("TensorFlow", keras.Model, False),
        ("TensorFlow, fused", keras.Model, True),
        ("XLA", CompiledReplicas, False),
        ("XLA, fused", CompiledReplicas, True),
    ):
        nv_norms_rewriter.clear_report()
        times = StepTimes()
        with strategy.scope(), contextlib.ExitStack() as switch:
            if not fuses:
                switch.enter_context(nv_norms_rewriter.disabled())
            model = transformer(kind, options.length, options.width, options.blocks)
            model.compile(keras.optimizers.Adam(1e-3), "mse")
            steps = {"steps_per_epoch": options.steps, "callbacks": [times], "verbose": 0}
            loss = model.fit(data, **steps).history["loss"][-1]
        print(f"{name}: loss {loss:.4f}, step {1e3 * times.median():.1f} ms (median)")
        if fuses:
            print(f"  {nv_norms_rewriter.report().summary()}")


if __name__ == "__main__":
    main()
