"""Gradients where the graph sums what was broadcast along sizes that it does not know."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_as_stock, layer_norm

EPSILON = 0.1


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(1.0, 2.0, shape).astype(np.float32)


def _step(norm: Callable, loss: Callable, wanted: int) -> Callable:
    """The gradients by the first `wanted` arguments of norm."""

    def step(*arguments: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            total = tf.reduce_sum(loss(norm(*arguments)))
        return tape.gradient(total, list(arguments[:wanted]))

    return step


def _rms_norm(x: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + EPSILON)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("known", [(None, 4), (3, 4)], ids=str)
@pytest.mark.parametrize("norm", [layer_norm, _rms_norm])
@pytest.mark.parametrize("scaled", [True, False])
def test_gate_of_x_beside_the_norm(rng, scaled, norm: Callable, known, batch: int) -> None:
    """dy times x is the gate's gradient, before dy is summed to x's batch."""

    def gated(x: tf.Tensor, gate: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
        return (norm(x) * gamma if scaled else norm(x)) + x * gate

    step = _step(gated, tf.sin, wanted=3 if scaled else 2)
    values = _draw(rng, batch, 4), _draw(rng, 3, 4), _draw(rng, 4)
    assert fused_as_stock(step, [(None, 4), known, (4,)], values) == ["forward", "backward"]


@pytest.mark.parametrize("batches", [(1, 1, 3), (1, 3, 3), (1, 3, 1), (3, 3, 3)], ids=str)
def test_gate_beside_a_scale_of_each_sample(rng, batches) -> None:
    def gated(x: tf.Tensor, scale: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        return layer_norm(x) * scale + x * gate

    sizes = ((batch, *rest) for batch, rest in zip(batches, [(3, 4), (1, 4), (1, 4)], strict=True))
    known = [(None, 3, 4), (None, 1, 4), (None, 1, 4)]
    fused_as_stock(_step(gated, tf.sin, 3), known, [_draw(rng, *size) for size in sizes])


def _norm(x: tf.Tensor) -> tf.Tensor:
    """Of one channel it is 0, and so is its gradient, but for what is rounded times 1 / epsilon."""
    return layer_norm(x, epsilon=1.0)


def _scaled(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return _norm(x) * gamma + x


def _shifted(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return _norm(x) * gamma + beta + x


def _scaled_then_shifted(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return _norm(_norm(x) * gamma) + beta + x


def _both_twice(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return _norm(_norm(x) * gamma) * gamma + beta + x


@pytest.mark.sampled(4)
@pytest.mark.parametrize("loss", [tf.sin, tf.square])
@pytest.mark.parametrize("known", [(None,), (None, None), (3, None)], ids=str)
@pytest.mark.parametrize("channels", [1, 6])
@pytest.mark.parametrize("norm", [_scaled, _shifted, _scaled_then_shifted, _both_twice])
def test_skip_that_is_broadcast_to_gamma(rng, norm, channels: int, known, loss: Callable) -> None:
    """What is summed to x's one channel is no beta's gradient, and what is not is no dy."""
    values = _draw(rng, *(3,) * (len(known) - 1), channels), _draw(rng, 6), _draw(rng, 6)
    wanted = 1 if norm is _scaled else 3
    fused_as_stock(_step(norm, loss, wanted), [known, (6,), (6,)], values)


def test_gate_whose_gradient_is_summed_to_fewer_channels(rng) -> None:
    """It is no gamma's gradient, though x's channels, which it may have, are gamma's."""

    def gated(x: tf.Tensor, gate: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
        normalized = layer_norm(x)
        return normalized * gamma + normalized * gate

    for channels in (1, 6):
        values = _draw(rng, 3, 6), _draw(rng, channels), _draw(rng, 6)
        fused_as_stock(_step(gated, tf.sin, 2), [(None, 6), (None,), (6,)], values)


@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize("shape", [(8,), (1, 8)], ids=str)
def test_gamma_of_one_element_of_a_norm_of_one_row(rng, shape, channels: int) -> None:
    """The gradient of mean * rstd * gamma is summed to gamma's size, and then is no dy."""

    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)

    values = _draw(rng, *shape), _draw(rng, channels), _draw(rng, *shape)
    fused_as_stock(_step(norm, tf.sin, 1), [shape, (None,), shape], values)
