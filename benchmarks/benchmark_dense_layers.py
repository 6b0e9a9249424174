"""Five fully connected layers, each followed by a norm: what the norm costs.

The experiment of the first fast layer norm for TensorFlow (2017): a float32 training step over the
number of units at a batch of 128, and over the batch size at 128 units, as a ratio to the network
without norms. "layer norm" is Keras' as it is; "fused" the same with the rewriter on, in that
kernel's three variants: normalized only, with a bias, with scale and bias. The number of units has
no limit (the old kernel's was 5120; the last row of a GPU's table is beyond).

Usage: python benchmarks/benchmark_dense_layers.py [--csv FILE] [--units 32 64] [--batches 16 32]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import measure
import tensorflow as tf

LAYERS = 5
# Column -> (norm layer or None, compiled by XLA, rewriter on)
NORMS: dict[str, tuple[Callable[[], Any] | None, bool, bool]] = {
    "no norm": (None, False, False),
    "batch norm": (keras.layers.BatchNormalization, False, False),
    "layer norm": (keras.layers.LayerNormalization, False, False),
    "layer norm, XLA": (keras.layers.LayerNormalization, True, False),
    "fused in XLA": (keras.layers.LayerNormalization, True, True),
    "fused": (keras.layers.LayerNormalization, False, True),
    "fused, bias only": (lambda: keras.layers.LayerNormalization(scale=False), False, True),
    "fused, normalized only": (
        lambda: keras.layers.LayerNormalization(scale=False, center=False),
        False,
        True,
    ),
}


def _step(norm: Callable[[], Any] | None, batch: int, units: int, xla: bool) -> Callable[[], Any]:
    keras.utils.set_random_seed(1)
    y = x = keras.Input((units,))
    for _ in range(LAYERS):
        y = keras.layers.Dense(units, use_bias=norm is None)(y)
        y = norm()(y) if norm else y
        y = keras.layers.Activation("relu")(y)
    model = keras.Model(x, y)
    variables = model.trainable_variables
    data = tf.random.stateless_normal((batch, units), [1, 2])
    target = tf.random.stateless_normal((batch, units), [3, 4])

    @tf.function(jit_compile=xla)
    def step(x: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - target))
        for variable, gradient in zip(
            variables, tape.gradient(loss, [v.value for v in variables]), strict=True
        ):
            variable.value.assign_sub(0.01 * gradient)
        return loss

    return lambda: step(data, target)


def measure_size(batch: int, units: int, options: Any) -> list[dict[str, Any]]:
    """A row for each column of the table."""
    calls = {name: _step(norm, batch, units, xla) for name, (norm, xla, _) in NORMS.items()}
    fused = {name: measure.first_call(call, NORMS[name][2]) for name, call in calls.items()}
    taken = measure.times(calls, options.repeat, options.rounds)
    return [
        {
            "batch": batch,
            "units": units,
            "norm": name,
            "ms": f"{ms:.4f}",
            "ratio": f"{ms / taken['no norm']:.3f}",
            "fused_forward": fused[name][0],
            "fused_backward": fused[name][1],
        }
        for name, ms in taken.items()
    ]


def main() -> None:
    gpu = measure.has_gpu()
    parser = measure.parser(__doc__)
    units = [32, 64, 128, 256, 512, 1024, *([8192] if gpu else [])]
    batches = [16, 32, 64, 128, 256, 512, *([4096, 16384] if gpu else [])]
    parser.add_argument("--units", type=int, nargs="*", default=units, help="at a batch of 128")
    parser.add_argument("--batches", type=int, nargs="*", default=batches, help="of 128 units")
    options = parser.parse_args()
    if not gpu:
        options.repeat = options.repeat or 10
    print(measure.heading())
    sizes = [(128, n) for n in options.units] + [(n, 128) for n in options.batches]
    for batch, count in sizes:
        rows = measure_size(batch, count, options)
        ratios = " ".join(f"{row['norm']}: {float(row['ratio']):0.2f}" for row in rows)
        print(f"Batch: {batch} Units: {count} Time(ratio to no norm): {ratios}", flush=True)
        measure.write(options.csv, "dense_layers", rows)


if __name__ == "__main__":
    main()
