"""Norms with a scale and an offset of each sample, in functions that are traced for XLA, with
batches of unknown size: x or a parameter may have one sample in a later call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from traced import found, ops_in

pytestmark = pytest.mark.usefixtures("every_norm", "enabled")

N, SPACE, CHANNELS = 3, (5, 4), 8


def _adaptive(activation: Any) -> Any:
    def step(x: Any, scale: Any, offset: Any, dy: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
            y = (x - mean) * tf.math.rsqrt(variance + 1e-3)
            y = activation(y * scale[:, None, None] + offset[:, None, None])
        return [y, *tape.gradient(y, [x, scale, offset], output_gradients=dy)]

    return step


def _inputs(rng: np.random.Generator, samples: tuple[int, int, int]) -> list[tf.Tensor]:
    shapes = [(samples[0], *SPACE, CHANNELS), (samples[1], CHANNELS), (samples[2], CHANNELS)]
    shapes.append((max(samples), *SPACE, CHANNELS))
    return [tf.constant(rng.normal(0.5, 2.0, shape), tf.float32) for shape in shapes]


def _exact(x: Any, scale: Any, offset: Any, dy: Any, relu: bool) -> list[np.ndarray]:
    """In float64, with gradients summed over what was broadcast."""
    x, scale, offset, dy = (np.asarray(v, np.float64) for v in (x, scale, offset, dy))
    n = dy.shape[0]
    full, gamma = np.broadcast_to(x, dy.shape), scale[:, None, None]

    def mean(value: np.ndarray) -> np.ndarray:
        return value.mean((1, 2), keepdims=True)

    rstd = 1 / np.sqrt(mean((full - mean(full)) ** 2) + 1e-3)
    xhat = (full - mean(full)) * rstd
    y = xhat * gamma + offset[:, None, None]
    if relu:
        dy, y = dy * (y > 0), np.maximum(y, 0)
    w = dy * gamma
    gradients = [rstd * (w - mean(w) - xhat * mean(w * xhat))]
    gradients += [(dy * xhat).sum((1, 2)), dy.sum((1, 2))]
    given = (x, scale, offset)
    return [y] + [
        d.sum(0, keepdims=True) if v.shape[0] < n else d
        for d, v in zip(gradients, given, strict=True)
    ]


@pytest.mark.parametrize("relu", [False, True])
def test_one_op_each_that_broadcasts_what_has_one_sample(
    rng: np.random.Generator, relu: bool
) -> None:
    signature = [tf.TensorSpec((None, *v.shape[1:])) for v in _inputs(rng, (N, N, N))]
    step = tf.function(_adaptive(tf.nn.relu if relu else tf.identity), signature, jit_compile=True)
    graph = step.get_concrete_function().graph
    assert found("forward") == found("backward") == 1
    assert ops_in(graph) == {"FusedInstanceNorm", "FusedInstanceNormGrad"}
    for samples in [(N, N, N), (1, N, N), (N, 1, N), (N, N, 1), (1, N, 1), (N, 1, 1), (1, 1, N)]:
        inputs = _inputs(rng, samples)
        for got, exact in zip(step(*inputs), _exact(*inputs, relu), strict=True):
            assert got.shape == exact.shape
            np.testing.assert_allclose(got, exact, 1e-4, 2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("samples", [(N, N), (1, N), (N, 1)])
def test_rows_that_are_chosen_when_the_function_runs(
    rng: np.random.Generator, samples: tuple[int, int]
) -> None:
    """Then XLA knows but a bound of their number."""
    rows, given = 7, [(None, 7, CHANNELS), (None, 1, CHANNELS), (None, 1, CHANNELS)]

    signature = [*map(tf.TensorSpec, given), tf.TensorSpec(rows, tf.bool)]

    @tf.function(input_signature=signature, jit_compile=True)
    def step(x: Any, scale: Any, offset: Any, mask: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            chosen = tf.ensure_shape(tf.boolean_mask(x, mask, axis=1), (None, None, CHANNELS))
            mean, variance = tf.nn.moments(chosen, [-1], keepdims=True)
            y = (chosen - mean) * tf.math.rsqrt(variance + 1e-3) * scale + offset
            half = tf.reduce_sum(y * y, 1) / 2
        return [half, *tape.gradient(half, [x, scale, offset])]

    mask = np.arange(rows) % 3 != 1
    x = rng.normal(0.5, 2.0, (samples[0], rows, CHANNELS)).astype(np.float32)
    scale, offset = rng.normal(0.5, 2.0, (2, samples[1], 1, CHANNELS)).astype(np.float32)
    got = step(x, scale, offset, mask)
    assert found("forward") == found("backward") == 1

    full = np.broadcast_to(x[:, mask].astype(np.float64), (N, mask.sum(), CHANNELS))
    centred = full - full.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    xhat = centred * rstd
    y = xhat * scale + offset
    w = y * scale
    dx = np.zeros((N, rows, CHANNELS))
    dx[:, mask] = rstd * (w - w.mean(-1, keepdims=True) - xhat * (w * xhat).mean(-1, keepdims=True))
    gradients = [dx, (y * xhat).sum(1, keepdims=True), y.sum(1, keepdims=True)]
    want = [(y * y).sum(1) / 2]
    for d, v in zip(gradients, (x, scale, offset), strict=True):
        want.append(d.sum(0, keepdims=True) if v.shape[0] < N else d)
    for value, exact in zip(got, want, strict=True):
        assert value.shape == exact.shape
        np.testing.assert_allclose(value, exact, 1e-4, 2e-5 * np.abs(exact).max())
