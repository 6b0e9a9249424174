"""Unknown sizes that turn out to be 1, where the graph broadcasts: left to the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm, placeholder, run, trace

import nv_norms_rewriter
from nv_norms_rewriter import rewrite

EPSILON = 1e-3


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(1.0, 2.0, shape).astype(np.float32)


def _as_stock(graph, values: Mapping[str, np.ndarray], fetches: Sequence[str]) -> list:
    """The records of what is fused, with the results of the stock graph."""
    after, report = rewrite(graph, fetches=fetches)
    names = [f"{name}:0" for name in fetches]
    for got, want in zip(run(after, values, names), run(graph, values, names), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    return list(report.fused)


_INNER = {
    "reshape": (lambda x, n: tf.reshape(x, [-1, n]), (3, 8)),
    "mask": (lambda x, n: tf.boolean_mask(x, tf.range(tf.shape(x)[1]) < n, axis=1), (3, 8)),
    "sum": (lambda x, n: x + x, (3, None)),
}


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(("inner", "shape"), _INNER.values(), ids=_INNER)
def test_gamma_beside_an_inner_axis_of_unknown_size(rng, inner, shape, size: int) -> None:
    gamma = tf.constant(_draw(rng, 8)).numpy()

    def make() -> None:
        x, n = placeholder("x", (3, None)), tf.compat.v1.placeholder(tf.int32, (), name="n")
        tf.identity(layer_norm(inner(x, n), -1, EPSILON, tf.constant(gamma)), name="y")

    values = {"x": _draw(rng, 3, shape[1] or size), "n": np.int32(size)}
    (record,) = _as_stock(trace(make), values, ["y"])
    assert len(record.inputs) == 1  # gamma stays in the graph


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("inner", [tf.identity, lambda x: x + x], ids=["argument", "inner"])
def test_gamma_of_unknown_channels(rng, inner: Callable, size: int) -> None:
    gamma = _draw(rng, 8)

    def make() -> None:
        x = inner(placeholder("x", (2, 5, None)))
        tf.identity(layer_norm(x, 1, EPSILON, tf.constant(gamma)), name="y")

    for record in _as_stock(trace(make), {"x": _draw(rng, 2, 5, size)}, ["y"]):
        assert len(record.inputs) == 1


@pytest.mark.parametrize("known", [(None, None, 8), (None, 5, 8), (2, None, 8)])
def test_gamma_of_known_channels_is_fused(rng, known: tuple[int | None, ...]) -> None:
    gamma = _draw(rng, 8)

    def make() -> None:
        x = placeholder("x", known)
        tf.identity(layer_norm(x + x, 1, EPSILON, tf.constant(gamma)), name="y")

    x = _draw(rng, 2, 5, 8)
    (record,) = _as_stock(trace(make), {"x": x}, ["y"])
    assert record.kind == "instance_norm" and len(record.inputs) == 2


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
