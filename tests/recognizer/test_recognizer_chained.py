"""Norms of norms: what the graph is found to be after one was fused, for those before and behind.

A group norm within [B, H, W, groups, C / groups] reads x merged to [B, H, W, C], and a Reshape
behind it splits the channels again: nothing may take the op's own output for the split one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter
import oracle

EPSILON = 1e-3
SHAPE = (2, 3, 4, 4, 3)
GROUPS = [1, 2, 4]


def norm(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def xhat(x: np.ndarray, axes: list[int]) -> np.ndarray:
    return oracle.normalize(x, tuple(axes), EPSILON, True).y


def dx_of(dy: np.ndarray, x: np.ndarray, axes: list[int]) -> np.ndarray:
    return oracle.backward(dy, x, None, tuple(axes), (), EPSILON).dx


def numbers(rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return rng.normal(0.5, 1.0, shape).astype(np.float32)


def check(
    call: Callable[..., list[tf.Tensor]],
    arguments: tuple[np.ndarray, ...],
    expected: list[np.ndarray],
    fused: int,
    jit: bool = False,
) -> None:
    nv_norms_rewriter.clear_report()
    with tf.device("CPU"):
        values = tf.function(call, jit_compile=jit)(*arguments)
    assert len(nv_norms_rewriter.report().fused) == fused, nv_norms_rewriter.report()
    for value, want in zip(values, expected, strict=True):
        assert value.shape == want.shape
        np.testing.assert_allclose(value, want, 2e-4, 2e-4 * np.abs(want).max())


def gradient(
    function: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor, tf.Tensor], list[tf.Tensor]]:
    """Of x and dy: y and dx."""

    def call(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return [y, tape.gradient(y, x, output_gradients=dy)]

    return call


@pytest.mark.parametrize("axes", [[-1], [1, 2], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("jit", [False, True])
def test_norm_of_a_group_norm(rng, every_norm, axes, jit):
    x = numbers(rng)
    expected = xhat(xhat(x, GROUPS), axes).reshape(2, 3, 4, 12)

    def call(x: tf.Tensor) -> list[tf.Tensor]:
        return [tf.reshape(norm(norm(x, GROUPS), axes), (2, 3, 4, 12))]

    # In a trace, the second x over [1, 2] would be a Reshape that is yet to be made: left alone.
    check(call, (x,), [expected], 1 if jit and axes == [1, 2] else 2, jit)


@pytest.mark.parametrize("axes", [[-1], [1, 2], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("jit", [False, True])
def test_gradient_of_a_norm_of_a_group_norm(rng, every_norm, axes, jit):
    x, dy = numbers(rng), numbers(rng)
    inner = xhat(x, GROUPS)
    expected = [xhat(inner, axes), dx_of(dx_of(dy, inner, axes), x, GROUPS)]
    check(gradient(lambda x: norm(norm(x, GROUPS), axes)), (x, dy), expected, 4, jit)


def test_norm_of_the_gradient_of_a_group_norm(rng):
    x, dy = numbers(rng), numbers(rng)
    expected = xhat(dx_of(dy, x, GROUPS), [-1])
    both = gradient(lambda x: norm(x, GROUPS))
    check(lambda x, dy: [norm(both(x, dy)[1], [-1])], (x, dy), [expected], 2)


def test_group_norm_of_a_reshape_and_a_norm_behind(rng):
    """The gradient that goes back through the Reshape has another shape than the norm's x."""
    x, dy = numbers(rng, (2, 4, 4, 12)), numbers(rng, (2, 4, 4, 2, 6))
    bent = np.tanh(x.astype(np.float64)).reshape(2, 4, 4, 2, 6)
    inner = xhat(bent, GROUPS)
    behind = dx_of(dx_of(dy, inner, [-1]), bent, GROUPS)
    expected = [xhat(inner, [-1]), (behind * (1 - bent**2)).reshape(x.shape)]
    call = gradient(lambda x: norm(norm(tf.tanh(tf.reshape(x, (-1, 4, 4, 2, 6))), GROUPS), [-1]))
    check(call, (x, dy), expected, 4)


def test_group_norm_beside_a_norm_of_it(rng):
    x, dy = numbers(rng), numbers(rng)
    inner = xhat(x, GROUPS)
    expected = [inner + xhat(inner, [-1]), dx_of(dy + dx_of(dy, inner, [-1]), x, GROUPS)]

    def beside(x: tf.Tensor) -> tf.Tensor:
        y = norm(x, GROUPS)
        return y + norm(y, [-1])

    check(gradient(beside), (x, dy), expected, 4)


def test_gamma_for_one_of_two_axes(rng):
    """y has x's four axes, of which one has size 1."""
    x = numbers(rng, (4, 1, 4, 6))
    gamma = rng.uniform(0.5, 2.0, (4, 1)).astype(np.float32)
    expected = xhat(xhat(x, [-2, -1]) * gamma, [-2, -1])
    check(lambda x: [norm(norm(x, [-2, -1]) * gamma, [-2, -1])], (x,), [expected], 2)


@pytest.mark.parametrize("jit", [False, True])
def test_norm_of_a_sum_with_a_norm_of_volumes(rng, every_norm, jit):
    """The gradient of the outer norm is part of the inner one's dy, of which it is no part.

    Taken for such, it was held against random numbers along ten axes, for half a minute.
    """
    axes = [1, 2, 3]
    x, dy = numbers(rng, (2, 3, 4, 2, 4)), numbers(rng, (2, 3, 4, 2, 4))
    between = dx_of(dy, x + xhat(x, axes), axes)
    expected = [xhat(x + xhat(x, axes), axes), between + dx_of(between, x, axes)]
    check(gradient(lambda x: norm(x + norm(x, axes), axes)), (x, dy), expected, 4, jit)
