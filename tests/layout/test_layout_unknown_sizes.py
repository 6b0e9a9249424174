"""Nets whose sizes nobody knows, as TensorFlow's layout pass leaves them.

The pass turns what it can and what the graph tells sizes of; sums of broadcasts and what they go
into stay as they were. So a norm and its dy are channels first, and its dx channels last.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from layout_emulation import optimize, run, trace, training_step, transposed_bytes

CHANNELS = 8


class Net(tf.Module):
    """Convolution, norm, and what comes between; three times; a convolution."""

    def __init__(
        self, rng: np.random.Generator, norm: Callable, between: Callable, rank: int, residual: bool
    ) -> None:
        def variable(*shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(0.0, 0.3, shape).astype(np.float32))

        self.norm, self.between, self.residual = norm, between, residual
        self.kernels = [variable(*[3] * rank, CHANNELS, CHANNELS) for _ in range(4)]
        self.gammas = [variable(CHANNELS) for _ in range(3)]
        self.betas = [variable(CHANNELS) for _ in range(3)]

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        for kernel, gamma, beta in zip(self.kernels, self.gammas, self.betas, strict=False):
            y = self.between(self.norm(tf.nn.convolution(x, kernel, 1, "SAME"), gamma, beta))
            x = x + y if self.residual else y
        return tf.nn.convolution(x, self.kernels[-1], 1, "SAME")


def _norm(axes: Callable[[int], list[int]], spelled: str) -> Callable:
    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        over = axes(x.shape.rank)
        if spelled == "rms":
            return (
                x * tf.math.rsqrt(tf.reduce_mean(x * x, over, keepdims=True) + 1e-3) * gamma + beta
            )
        mean, variance = tf.nn.moments(x, over, keepdims=True)
        if spelled == "one product":
            return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)
        if spelled == "divided":
            return (x - mean) / tf.sqrt(variance + 1e-3) * gamma + beta
        return (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta

    return norm


NORMS = {
    f"{name}, {spelled}": _norm(axes, spelled)
    for name, axes in {
        "instance": lambda rank: [*range(1, rank - 1)],
        "image": lambda rank: [*range(1, rank)],
        "layer": lambda _: [-1],
    }.items()
    for spelled in ("one product", "product", "divided", "rms")
}
BETWEEN = {"nothing": tf.identity, "relu": tf.nn.relu, "silu": tf.nn.silu, "tanh": tf.tanh}


CASES = [
    *((2, False, between) for between in BETWEEN),
    (3, False, "relu"),
    (2, True, "silu"),
    # Without an activation y and what it is added to are one sum: which is larger is to be told.
    (2, True, "nothing"),
    (3, True, "nothing"),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("rank", "residual", "between"), CASES)
@pytest.mark.parametrize("norm", NORMS)
def test_whole_gradients_are_fused(rng, rank: int, residual: bool, norm: str, between: str) -> None:
    net = Net(rng, NORMS[norm], BETWEEN[between], rank, residual)
    graph, fetches = trace(training_step(net), [(None,) * (1 + rank) + (CHANNELS,)])
    stock, fused, report = optimize(graph, fetches)
    assert not report.refused, report
    backward = [record for record in report.fused if record.direction == "backward"]
    assert len(backward) == 3 and not any(record.leaves_dx for record in backward), report
    before, after = transposed_bytes(stock), transposed_bytes(fused)
    assert len(after) <= len(before) and sum(after) <= sum(before)
    names = [variable.name for variable in net.trainable_variables]
    found, expected = run(fused, fetches, unknown=5), run(stock, fetches, unknown=5)
    for name, got, want in zip(["loss", *names], found, expected, strict=True):
        np.testing.assert_allclose(got, want, 1e-3, 2e-4 * np.abs(want).max(), err_msg=name)
