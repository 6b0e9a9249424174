"""Unknown sizes that turn out to be 1, where the graph broadcasts: left to the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm

import nv_norms_rewriter

EPSILON = 1e-3


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(1.0, 2.0, shape).astype(np.float32)


def _step_as_stock(step: Callable, known: Sequence, values: Sequence[np.ndarray]) -> list[str]:
    """The directions of what is fused in this function of tensors of which so much is known."""
    signature = [tf.TensorSpec(shape) for shape in known]
    values = [tf.constant(value) for value in values]

    def results() -> list[np.ndarray]:
        return [each.numpy() for each in tf.function(step, input_signature=signature)(*values)]

    with nv_norms_rewriter.disabled():
        stock = results()
    nv_norms_rewriter.clear_report()
    for got, want in zip(results(), stock, strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    return [record.direction for record in nv_norms_rewriter.report().fused]


def _batch_norm_of_rows(x: tf.Tensor, offset: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = tf.nn.batch_normalization(x, mean, variance, offset, tf.range(1.0, 9.0), EPSILON)
        loss = tf.reduce_sum(tf.sin(y))
    return [y, tape.gradient(loss, x)]


@pytest.mark.parametrize("batch", [1, 3])
def test_offset_of_a_known_batch(rng, batch: int) -> None:
    """Where x's batch is 1, y is larger than x, and so is the gradient of y."""
    values = _draw(rng, batch, 4, 8), _draw(rng, 3, 4, 8)
    known = (None, 4, 8), (3, 4, 8)
    assert _step_as_stock(_batch_norm_of_rows, known, values) == ["forward"]


def test_offset_of_the_same_batch(rng) -> None:
    values = _draw(rng, 3, 4, 8), _draw(rng, 3, 4, 8)
    known = (3, 4, 8), (3, 4, 8)
    assert _step_as_stock(_batch_norm_of_rows, known, values) == ["forward", "backward"]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_dy_that_is_yet_to_be_broadcast(rng, rank: int) -> None:
    """The gradient of sum(norm(x) * g) is g, of one element: Grappler drops the ones around it."""

    def step(x: tf.Tensor, g: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, g])
            loss = tf.reduce_sum(layer_norm(x, -1, EPSILON) * g)
        return tape.gradient(loss, [x, g])

    values = _draw(rng, *(2, 3, 5)[: rank - 1], 6), _draw(rng, *(1,) * rank)
    assert "forward" in _step_as_stock(step, [(None,) * rank, (1,) * rank], values)
