"""What goes on beside a norm (a scale or a shift per sample) may be larger than x, or read late."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import stock_and_fused

import nv_norms_rewriter

EPSILON = 1e-3
v1 = tf.compat.v1


def _norm(x: tf.Tensor, scale, shift, axes: tuple[int, ...] = (1, 2)) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, shift, scale, EPSILON)


def _gradients(y_of: Callable) -> Callable:
    def step(*values: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = y_of(*values)
            loss = tf.reduce_sum(tf.sin(3.0 * y))  # not square: its dx cancels
        return [y, *tape.gradient(loss, values)]

    return step


def _same_as_stock(rng, y_of: Callable, known: list[tuple], shapes: list[tuple], jit: bool) -> None:
    values = [rng.uniform(0.5, 2.0, shape).astype("f") for shape in shapes]
    signature = [tf.TensorSpec(shape) for shape in known]
    stock, fused = stock_and_fused(_gradients(y_of), signature, values, jit)
    for before, got in zip(stock, fused, strict=True):
        assert got.shape == before.shape
        np.testing.assert_allclose(got, before, 1e-3, 2e-5 * np.abs(before).max())


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batches", [(1, 3), (3, 3), (3, 1)], ids=str)
def test_a_target_of_more_samples_than_x(rng, batches: tuple[int, int], jit: bool) -> None:
    """The scale surely fits, but what reaches y may have more samples than x."""
    x, target = ((batch, 5, 6, 8) for batch in batches)
    unknown = (None, 5, 6, 8)
    known, shapes = [unknown, (5, 1, 1), unknown], [x, (5, 1, 1), target]
    _same_as_stock(rng, lambda x, g, t: _norm(x, g, None) - t, known, shapes, jit)
    assert any(record.fused for record in nv_norms_rewriter.report())


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batches", [(1, 3), (3, 3), (3, 1)], ids=str)
def test_a_shift_of_more_samples_than_x_and_a_product(rng, batches, jit: bool) -> None:
    x, b = ((batch, 4, 5, 8) for batch in batches)
    known = [(None, 4, 5, 8), (None, 1, 1, 8), (None, 1, 1, 8)]
    shapes = [x, (b[0], 1, 1, 8), (b[0], 1, 1, 8)]
    _same_as_stock(rng, lambda x, b, g: _norm(x, None, b) * g, known, shapes, jit)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("scaled", [False, True], ids=["shift", "scale"])
@pytest.mark.parametrize(
    ("known", "shapes"),
    [
        ([(None, 5, 6, None, 4), (None, 1, 1, 4, 1)], [(4, 5, 6, 1, 4), (1, 1, 1, 4, 1)]),
        ([(None, 5, 6, None, 4), (None, 1, 1, 4, 1)], [(3, 5, 6, 4, 4), (3, 1, 1, 4, 1)]),
        ([(None, 5, 6, 4, 4), (4, 1, 1, 4, 1)], [(1, 5, 6, 4, 4), (4, 1, 1, 4, 1)]),
    ],
    ids=str,
)
def test_groups_that_only_the_neighbour_counts(rng, known, shapes, scaled: bool, jit: bool) -> None:
    """Its size is not x's, which a Reshape of the groups would have to know."""
    axes = (1, 2, 4)

    def y_of(x: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return _norm(x, other, None, axes) if scaled else _norm(x, None, other, axes)

    _same_as_stock(rng, y_of, known, shapes, jit)


def test_a_shift_that_is_assigned_before_the_sum_is_taken(rng) -> None:
    image = rng.normal(size=(3, 4, 5, 8)).astype("f")

    def run() -> np.ndarray:
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [None, 4, 5, 8])
            zeros = np.zeros((3, 1, 1, 8), "f")
            shift = v1.get_variable("shift", initializer=zeros, use_resource=False)
            mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
            rstd = tf.math.rsqrt(variance + EPSILON)
            first, second = x * rstd, shift - mean * rstd
            with tf.control_dependencies([first, second]):
                assigned = v1.assign(shift, shift + 1.5)
            with tf.control_dependencies([assigned]):
                y = first + second
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                return session.run(y, {x: image})

    with nv_norms_rewriter.disabled():
        stock = run()
    np.testing.assert_allclose(run(), stock, 1e-4, 1e-5)
