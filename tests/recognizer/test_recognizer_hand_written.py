"""Spellings out of other people's code whose gamma and beta go into the op, and their gradients
with them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, moments, placeholder, stock_and_fused, trace

import nv_norms_rewriter
import oracle

EPSILON = 1e-3
SHAPE = (4, 3, 8)


def _xhat(x: tf.Tensor) -> tf.Tensor:
    mean, variance = moments(x)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def _root(x: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.nn.moments(x, [-1], keepdims=True)[1] + EPSILON)


def _centred(x: tf.Tensor) -> tf.Tensor:
    return x - tf.reduce_mean(x, -1, keepdims=True)


SPELLINGS = {
    "bias_add": lambda x, g, b: tf.nn.bias_add(_xhat(x) * g, b),
    "ops.add": lambda x, g, b: keras.ops.add(keras.ops.multiply(_xhat(x), g), b),
    "one over the root": lambda x, g, b: _centred(x) * (1.0 / _root(x)) * g + b,
    "times one over the root": lambda x, g, b: _centred(x) * 1.0 / _root(x) * g + b,
    "root to the power of -1": lambda x, g, b: _centred(x) * _root(x) ** -1 * g + b,
    "root repeated": lambda x, g, b: _centred(x) / tf.broadcast_to(_root(x), tf.shape(x)) * g + b,
    "root tiled": lambda x, g, b: _centred(x) / tf.tile(_root(x), [1, 1, SHAPE[-1]]) * g + b,
    "clipped": lambda x, g, b: (
        _centred(x) / tf.sqrt(tf.clip_by_value(tf.square(_root(x)), 0.0, np.inf)) * g + b
    ),
}


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batch", [SHAPE[0], None], ids=["", "unknown"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_whole_norm_and_its_gradient(rng, spelling: str, batch: int | None, jit: bool) -> None:
    def step(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            y = SPELLINGS[spelling](x, gamma, beta)
            loss = tf.reduce_sum(tf.square(y) * dy)
        return [y, *tape.gradient(loss, [x, gamma, beta])]

    x, dy = (rng.normal(size=SHAPE).astype(np.float32) for _ in range(2))
    gamma, beta = (rng.uniform(0.5, 2.0, SHAPE[-1]).astype(np.float32) for _ in range(2))
    known = (batch, *SHAPE[1:])
    signature = [tf.TensorSpec(shape) for shape in (known, SHAPE[-1:], SHAPE[-1:], known)]
    before, fused = stock_and_fused(step, signature, [x, gamma, beta, dy], jit)
    y = oracle.layer_norm(x, gamma, beta, epsilon=EPSILON).y
    exact = oracle.backward(2.0 * dy * y, x, gamma, (2,), (2,), EPSILON)
    expected = (y, exact.dx, exact.dgamma, exact.dbeta)
    for got, stock, want in zip(fused, before, expected, strict=True):
        size = np.abs(want).max()
        np.testing.assert_allclose(stock, want, 1e-4, 2e-5 * size, err_msg="stock")
        np.testing.assert_allclose(got, want, 1e-4, 2e-5 * size)
    forward, backward = nv_norms_rewriter.report().fused
    assert (forward.direction, len(forward.inputs)) == ("forward", 3)
    # The gradient of a Tile in unknown sizes hides which axes dy is summed over to dbeta.
    whole = spelling != "root tiled" or batch is not None
    assert (backward.direction, len(backward.outputs)) == ("backward", 3 if whole else 2)


NUMBERS = {
    "2 x": lambda x: 2.0 * x,
    "x - 1": lambda x: x - 1.0,
    "2 x - 1": lambda x: 2.0 * x - 1.0,
    "x / 127.5 - 1": lambda x: x / 127.5 - 1.0,
}


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_what_numbers_make_of_x_goes_on_beside_its_norm(rng, numbers: str, jit: bool) -> None:
    """dx is that of what goes on: it is a term of a sum, and the numbers come behind it."""

    def step(x: tf.Tensor, gamma: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            h = NUMBERS[numbers](x)
            y = h + tf.tanh(_xhat(h) * gamma)
            loss = tf.reduce_sum(tf.square(y) * dy)
        return [y, *tape.gradient(loss, [x, gamma])]

    x, dy = (rng.normal(size=SHAPE).astype(np.float32) for _ in range(2))
    x *= 100.0 if "127.5" in numbers else 1.0
    gamma = rng.uniform(0.5, 2.0, SHAPE[-1]).astype(np.float32)
    signature = [tf.TensorSpec(value.shape) for value in (x, gamma, dy)]
    before, fused = stock_and_fused(step, signature, [x, gamma, dy], jit)
    h = NUMBERS[numbers](np.float64(x))
    tanh = np.tanh(oracle.layer_norm(h, gamma, epsilon=EPSILON).y)
    given = 2.0 * dy * (h + tanh)
    of_norm = oracle.backward(given * (1.0 - tanh**2), h, gamma, (2,), (2,), EPSILON)
    slope = NUMBERS[numbers](1.0) - NUMBERS[numbers](0.0)
    expected = (h + tanh, slope * (given + of_norm.dx), of_norm.dgamma)
    for got, stock, want in zip(fused, before, expected, strict=True):
        size = np.abs(want).max()
        np.testing.assert_allclose(stock, want, 1e-4, 5e-5 * size, err_msg="stock")
        np.testing.assert_allclose(got, want, 1e-4, 5e-5 * size)
    (backward,) = (r for r in nv_norms_rewriter.report().fused if r.direction == "backward")
    assert len(backward.outputs) == 2 and not backward.leaves_dx


@pytest.mark.parametrize("way", ["tile", "broadcast_to"])
@pytest.mark.parametrize("columns", [1, 5])
def test_root_repeated_by_a_number_that_may_be_another(rng, columns: int, way: str) -> None:
    """Of one column it makes five, as far as the graph tells."""

    def make() -> None:
        x = placeholder("x", (None, None))
        n = tf.compat.v1.placeholder(tf.int32, (), "n")
        root = _root(x)
        if way == "tile":
            repeated = tf.tile(root, [1, n])
        else:
            repeated = tf.broadcast_to(root, [tf.shape(x)[0], n])
        tf.divide(_centred(x), repeated, name="y")

    x = rng.normal(size=(3, columns)).astype(np.float32)
    exact = oracle.layer_norm(x, epsilon=EPSILON).y + np.zeros((1, 5))
    check(trace(make), {"x": x, "n": np.int32(5)}, exact, 0)


def _bias(x: tf.Tensor, bias: tf.Tensor, data_format: str) -> tf.Tensor:
    return tf.raw_ops.BiasAdd(value=x, bias=bias, data_format=data_format)


@pytest.mark.parametrize("known", [True, False], ids=["", "batch unknown"])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_beta_of_an_instance_norm_that_is_a_bias(rng, data_format: str, known: bool) -> None:
    first = data_format == "NCHW"
    shape = (2, 6, 3, 5) if first else (2, 3, 5, 6)
    axes = (2, 3) if first else (1, 2)

    def make() -> None:
        x = placeholder("x", shape if known else (None, *shape[1:]))
        mean, variance = moments(x, axes)
        y = (x - mean) * tf.math.rsqrt(variance + EPSILON)
        tf.identity(_bias(y, placeholder("b", (6,)), data_format), name="y")

    x, b = rng.normal(size=shape).astype(np.float32), rng.normal(size=6).astype(np.float32)
    exact = oracle.instance_norm(x, None, b, 1 if first else -1, EPSILON).y
    _, (record,) = check(trace(make), {"x": x, "b": b}, exact, 1)
    assert record.inputs == ("x:0", "b:0")


@pytest.mark.parametrize("shape", [(2, 8, 3, 8), None], ids=["", "rank unknown"])
def test_bias_along_another_axis_is_no_beta(rng, shape) -> None:
    """The second axis has as many elements as the last, which is normalized over."""

    def make() -> None:
        x = placeholder("x", shape)
        gamma = placeholder("g", (8,))
        tf.identity(_bias(_xhat(x) * gamma, placeholder("b", (8,)), "NCHW"), name="y")

    x = rng.normal(size=(2, 8, 3, 8)).astype(np.float32)
    g, b = (rng.normal(size=8).astype(np.float32) for _ in range(2))
    exact = oracle.layer_norm(x, g, epsilon=EPSILON).y + b[:, None, None]
    _, (record,) = check(trace(make), {"x": x, "g": g, "b": b}, exact, 1)
    assert record.inputs == ("x:0", "g:0")


@pytest.mark.parametrize("known", [True, False], ids=["", "rank unknown"])
def test_gradient_of_a_bias_along_another_axis_is_no_dbeta(rng, known: bool) -> None:
    shape = (2, 8, 3, 8)
    spec = tf.TensorSpec(shape if known else None)

    @tf.function(input_signature=[spec, spec, *[tf.TensorSpec((8,))] * 2], autograph=False)
    def step(x: tf.Tensor, dy: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            y = _xhat(x) * gamma + beta
        along = tf.raw_ops.BiasAddGrad(out_backprop=dy, data_format="NCHW")
        return [along, y, *tape.gradient(y, [x, gamma], dy)]

    x, dy = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    gamma, beta = (rng.uniform(0.5, 2.0, 8).astype(np.float32) for _ in range(2))
    nv_norms_rewriter.clear_report()
    got = step(*map(tf.constant, (x, dy, gamma, beta)))
    y = oracle.layer_norm(x, gamma, beta, epsilon=EPSILON).y
    exact = oracle.backward(dy, x, gamma, (3,), (3,), EPSILON)
    expected = (dy.sum((0, 2, 3)), y, exact.dx, exact.dgamma)
    for actual, want in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, want, 1e-4, 2e-5 * np.abs(want).max())
    assert [r.direction for r in nv_norms_rewriter.report().fused] == ["forward", "backward"]
