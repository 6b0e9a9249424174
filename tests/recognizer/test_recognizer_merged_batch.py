"""Groups of the last axes of x that several axes come before: RWKV's norm, parameters of heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import stock_and_fused

import nv_norms_rewriter

HEADS, SIZE = 3, 8
CHANNELS = HEADS * SIZE
EPSILON = 1e-3


def _expected(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Over each head's numbers, in float64."""
    heads = x.astype(np.float64).reshape(*x.shape[:2], HEADS, SIZE)
    mean = heads.mean(-1, keepdims=True)
    variance = heads.var(-1, keepdims=True)
    y = (heads - mean) / np.sqrt(variance + EPSILON) * gamma.reshape(HEADS, SIZE)
    return (y + beta.reshape(HEADS, SIZE)).reshape(x.shape)


def _rwkv(gamma: tf.Variable, beta: tf.Variable) -> Callable:
    """Keras' layer has rows of [batch * time, channels], between two Reshapes."""
    layer = keras.layers.GroupNormalization(HEADS, epsilon=EPSILON)
    layer.build((None, CHANNELS))

    def norm(x: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(x, [-1, CHANNELS])
        (y, _) = layer.stateless_call([gamma, beta], [], rows)
        return tf.reshape(y, tf.shape(x))

    return norm


def _heads(gamma: tf.Variable, beta: tf.Variable) -> Callable:
    def norm(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)

    return norm


def _step(norm: Callable, variables: Sequence[tf.Variable]) -> Callable:
    def step(x: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)
            loss = tf.reduce_sum(y * w)
        return [y, *tape.gradient(loss, [x, *variables])]

    return step


def _kinds() -> list[tuple[str, str]]:
    return [(record.kind, record.direction) for record in nv_norms_rewriter.report().fused]


BOTH = [("group_norm", "forward"), ("group_norm", "backward")]


@pytest.mark.parametrize("jit", [False, True], ids=["grappler", "xla"])
@pytest.mark.parametrize("known", [(2, 5), (None, 5), (None, None)], ids=str)
@pytest.mark.parametrize("make", [_rwkv, _heads])
def test_groups_behind_several_axes(rng, make: Callable, known: tuple, jit: bool) -> None:
    tail = (CHANNELS,) if make is _rwkv else (HEADS, SIZE)
    x, w = (rng.normal(1, 2, (2, 5, *tail)).astype(np.float32) for _ in range(2))
    parameters = [tf.Variable(rng.normal(1, 1, tail).astype(np.float32)) for _ in range(2)]
    step = _step(make(*parameters), parameters)
    stock, fused = stock_and_fused(step, [tf.TensorSpec((*known, *tail))] * 2, (x, w), jit)
    assert _kinds() == BOTH, nv_norms_rewriter.report()
    gamma, beta = (each.numpy() for each in parameters)
    want = _expected(x.reshape(2, 5, CHANNELS), gamma, beta).reshape(x.shape)
    np.testing.assert_allclose(fused[0], want, 0, 2e-5)
    for got, same in zip(fused, stock, strict=True):
        assert got.shape == same.shape
        np.testing.assert_allclose(got, same, 1e-4, 1e-4)


def test_groups_of_a_row_without_parameters(rng) -> None:
    """Rows of [batch, time, channels] as heads and back: parameters may come behind them."""
    gamma = tf.Variable(rng.normal(1, 1, CHANNELS).astype(np.float32))

    def norm(x: tf.Tensor) -> tf.Tensor:
        heads = tf.reshape(x, [tf.shape(x)[0], tf.shape(x)[1], HEADS, SIZE])
        mean, variance = tf.nn.moments(heads, [-1], keepdims=True)
        return tf.reshape((heads - mean) * tf.math.rsqrt(variance + EPSILON), tf.shape(x)) * gamma

    x, w = (rng.normal(1, 2, (2, 5, CHANNELS)).astype(np.float32) for _ in range(2))
    for jit in (False, True):
        step = _step(norm, [gamma])
        spec = tf.TensorSpec((None, None, CHANNELS))
        stock, fused = stock_and_fused(step, [spec, spec], (x, w), jit)
        assert _kinds() == BOTH, nv_norms_rewriter.report()
        want = _expected(x, gamma.numpy(), np.zeros(CHANNELS))
        np.testing.assert_allclose(fused[0], want, 0, 2e-5)
        for got, same in zip(fused, stock, strict=True):
            np.testing.assert_allclose(got, same, 1e-4, 1e-4)


@pytest.mark.parametrize("combine", [tf.add, tf.multiply])
def test_table_of_positions_behind_a_layer_norm(rng, combine: Callable) -> None:
    """It is no offset of a group norm whose groups are positions, though it could be one."""
    table = tf.Variable(rng.normal(1, 1, (5, CHANNELS)).astype(np.float32))

    def norm(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return combine((x - mean) * tf.math.rsqrt(variance + EPSILON), table)

    x, w = (rng.normal(1, 2, (2, 5, CHANNELS)).astype(np.float32) for _ in range(2))
    spec = tf.TensorSpec((None, 5, CHANNELS))
    stock, fused = stock_and_fused(_step(norm, [table]), [spec, spec], (x, w), False)
    assert ("layer_norm", "forward") in _kinds()
    assert all(kind == "layer_norm" for kind, _ in _kinds())
    for got, same in zip(fused, stock, strict=True):
        np.testing.assert_allclose(got, same, 1e-4, 1e-4)


@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("jit", [False, True], ids=["grappler", "xla"])
def test_heads_that_may_be_one_for_all_parameters(rng, heads: int, jit: bool) -> None:
    """x of one head is broadcast to as many as gamma has: its size is not known."""
    x = rng.normal(1, 2, (2, HEADS, heads, SIZE)).astype(np.float32)
    w = rng.normal(1, 2, (2, HEADS, HEADS, SIZE)).astype(np.float32)
    parameters = [tf.Variable(rng.normal(1, 1, (HEADS, SIZE)).astype(np.float32)) for _ in "gb"]
    signature = [tf.TensorSpec((None, None, None, SIZE)), tf.TensorSpec((2, HEADS, HEADS, SIZE))]
    step = _step(_heads(*parameters), parameters)
    stock, fused = stock_and_fused(step, signature, (x, w), jit)
    for got, same in zip(fused, stock, strict=True):
        assert got.shape == same.shape
        np.testing.assert_allclose(got, same, 1e-4, 1e-4)
