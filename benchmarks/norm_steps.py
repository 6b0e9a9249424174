"""One training step of a single norm layer, in every way that TensorFlow can run it.

The step is that of the benchmarks of NVIDIA's nv_norms: policy mixed_float16, a float32 x, y and
the gradients of x, gamma and beta. There the loss is reduce_sum(y); here the gradient of y is a
tensor of random numbers, as in a network: where it is the same number everywhere, TensorFlow folds
part of the step away. Without a GPU the policy is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import measure
import tensorflow as tf

# Column -> what it is. "TF" and "NV" are the two of the original tables.
WAYS = {
    "TF": "Keras' layer, eager",
    "NV": "nv_norms' layer, eager",
    "TF function": "Keras' layer in a tf.function, rewriter off",
    "NV function": "nv_norms' layer in a tf.function",
    "NV automatic": "Keras' layer in a tf.function, rewriter on",
    "XLA": "Keras' layer, jit_compile=True, rewriter off",
    "NV XLA": "nv_norms' layer, jit_compile=True",
    "TF ops": "norm and gradient alone, Keras' layer in a tf.function (see _ops_alone)",
    "XLA ops": "the same compiled by XLA",
    "NV ops": "the same, the two fused ops",
    "copy": "one copy of x (float32)",
}
_NORMS_IN_A_CALL = 5


def _step(layer: Any) -> Callable[[tf.Tensor, tf.Tensor], list[tf.Tensor]]:
    def train_step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        sources = [x, *(weight.value for weight in layer.trainable_variables)]
        return [y, *tape.gradient(y, sources, output_gradients=dy)]

    return train_step


def _ops_alone(
    norm: Callable[[tf.Tensor], tf.Tensor], weights: list[tf.Tensor], x: tf.Tensor, dy: tf.Tensor
) -> Callable[[], Any]:
    """Norms one after the other, then their gradients, all in the compute type.

    That leaves next to no time of the host to each, and a gradient's dy comes after its y, as in a
    network.
    """
    x = tf.cast(x, dy.dtype)

    def run() -> list[tf.Tensor]:
        y = x
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            for _ in range(_NORMS_IN_A_CALL):
                y = norm(y)
        gradients = tape.gradient(y, [x, *weights], output_gradients=dy)
        return [tf.reduce_max(value) for value in (y, *gradients)]

    return run


def measure_shape(
    shape: tuple[int, ...],
    stock: Callable[[], Any],
    explicit: Callable[[], Any],
    fused: Callable[..., Any],
    options: Any,
) -> tuple[dict[str, float], tuple[int, int]]:
    """Milliseconds of each of WAYS, and what was fused in the automatic one."""
    keras.config.set_dtype_policy(options.policy)
    x = tf.random.stateless_normal(shape, [7, 8])
    dy = tf.cast(
        tf.random.stateless_normal(shape, [1, 2]), keras.config.dtype_policy().compute_dtype
    )
    layers = {"TF": stock(), "NV": explicit()}
    for layer in layers.values():
        layer.build(shape)
    eager = {name: _step(layer) for name, layer in layers.items()}
    graphs = {
        "TF function": tf.function(eager["TF"]),
        "NV function": tf.function(eager["NV"]),
        "NV automatic": tf.function(_step(layers["TF"])),
        "XLA": tf.function(_step(layers["TF"]), jit_compile=True),
        "NV XLA": tf.function(_step(layers["NV"]), jit_compile=True),
    }
    steps = {**eager, **graphs}
    wanted = [way for way in WAYS if way in (options.ways or WAYS)]
    found = (0, 0)
    ways: dict[str, Callable[[], Any]] = {}
    for way in wanted:
        if way in steps:
            ways[way] = (lambda step: lambda: step(x, dy))(steps[way])
            on = way == "NV automatic"
            counts = measure.first_call(ways[way], rewriter=on)
            found = counts if on else found
    ones, zeros = tf.ones(layers["NV"].gamma.shape), tf.zeros(layers["NV"].beta.shape)
    weights = [weight.value for weight in layers["TF"].trainable_variables]
    alone = {
        "TF ops": tf.function(_ops_alone(layers["TF"], weights, x, dy)),
        "XLA ops": tf.function(_ops_alone(layers["TF"], weights, x, dy), jit_compile=True),
        "NV ops": tf.function(_ops_alone(lambda x: fused(x, ones, zeros), [ones, zeros], x, dy)),
    }
    for way in wanted:
        if way in alone:
            ways[way] = alone[way]
            measure.first_call(ways[way], rewriter=False)
    if "copy" in wanted:
        ways["copy"] = measure.copy_of(x)
    result = measure.times(ways, options.repeat, options.rounds)
    for way in alone:
        if way in result:
            result[way] /= _NORMS_IN_A_CALL
    return result, found


def rows(
    shape: tuple[int, ...], layout: str, result: dict[str, float], fused: Any, options: Any
) -> list[dict[str, Any]]:
    """For the CSV file, one for each way."""
    return [
        {
            "shape": "x".join(map(str, shape)),
            "layout": layout,
            "policy": options.policy,
            "way": way,
            "ms": f"{ms:.4f}",
            "fused_forward": fused[0] if way == "NV automatic" else "",
            "fused_backward": fused[1] if way == "NV automatic" else "",
        }
        for way, ms in result.items()
    ]


def add_options(parser: Any, divide: int) -> None:
    """Those of both benchmarks of one layer."""
    gpu = measure.has_gpu()
    parser.add_argument("--divide", type=int, default=1 if gpu else divide)
    parser.add_argument("--shapes", type=int, nargs="+", metavar="I", help="only these, from 0")
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--policy", default="mixed_float16" if gpu else "float32")


def line(shape: str, result: dict[str, float]) -> str:
    """As the original prints it, with more columns behind the first two."""
    columns = " ".join(f"{way}: {ms:0.2f}" for way, ms in result.items())
    return f"Input: {shape} Time(ms): {columns}"
