"""An epsilon that is a tensor made beforehand, which the function captures: it is a number to it,
unless somebody differentiates by it."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from traced import close, found, ops_in

import nv_norms_rewriter
import oracle

pytestmark = pytest.mark.usefixtures("every_norm")

SHAPE = (6, 16)
NUMBER = 0.25


def _norm(x: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + tf.cast(epsilon, x.dtype))


def _step(x: tf.Tensor, epsilon: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = _norm(x, epsilon)
        loss = tf.reduce_sum(tf.square(y) * tf.range(1.0, SHAPE[1] + 1))
    return [y, tape.gradient(loss, x)]


def _exact(x: np.ndarray, epsilon: float) -> list[np.ndarray]:
    y = oracle.layer_norm(x, epsilon=epsilon).y
    dy = 2.0 * y * np.arange(1.0, SHAPE[1] + 1)
    return [y, oracle.backward(dy, x, None, (1,), (), epsilon).dx]


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(1.0, 0.5, SHAPE).astype(np.float32)


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=str)
def test_a_constant_made_beforehand(x: np.ndarray, dtype: tf.DType, shape, jit: bool) -> None:
    epsilon = tf.constant(NUMBER, dtype, shape)
    function = tf.function(lambda x: _step(x, epsilon), jit_compile=jit)
    for got, exact in zip(function(tf.constant(x)), _exact(x, NUMBER), strict=True):
        close(got, exact)
    where = "xla" if jit else "graph"
    assert found("forward", where) == found("backward", where) == 1
    assert {r.epsilon for r in nv_norms_rewriter.report()} == {NUMBER}


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
def test_each_function_has_its_own(x: np.ndarray, jit: bool) -> None:
    def twice(epsilon: tf.Tensor) -> tf.types.experimental.PolymorphicFunction:
        called = tf.function(lambda x: _step(x, epsilon), jit_compile=jit)
        return tf.function(lambda x: [2.0 * each for each in called(x)])

    for number in (0.25, 4.0):
        results = twice(tf.constant(number))(tf.constant(x))
        for got, exact in zip(results, _exact(x, number), strict=True):
            close(got, 2.0 * exact)
    assert sorted({r.epsilon for r in nv_norms_rewriter.report().fused}) == [0.25, 4.0]


class _Norm(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.epsilon = tf.constant(NUMBER)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return _norm(x, self.epsilon)


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
def test_a_keras_layer_that_keeps_it(x: np.ndarray, jit: bool) -> None:
    model = keras.Sequential([keras.Input(SHAPE[1:]), keras.layers.Dense(16), _Norm()])
    model.compile("sgd", "mse", jit_compile=jit)
    kernel, bias = (v.numpy() for v in model.weights)
    close(model.predict(x, verbose=0), oracle.layer_norm(x @ kernel + bias, epsilon=NUMBER).y)
    model.fit(x, x, epochs=1, verbose=0)
    where = "xla" if jit else "graph"
    assert found("forward", where) == 2
    assert found("backward", where) == 1


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "persistent"])
def test_a_tape_outside_that_watches_it(x: np.ndarray, persistent: bool, jit: bool) -> None:
    """Its gradient was lost."""
    epsilon = tf.constant(NUMBER)
    gradients = []
    for way in (nv_norms_rewriter.disabled, contextlib.nullcontext):
        with way(), tf.GradientTape(persistent=persistent) as tape:
            function = tf.function(lambda x: _norm(x, epsilon), jit_compile=jit)
            given = tf.constant(x)
            tape.watch([given, epsilon])
            loss = tf.reduce_sum(tf.square(function(given)))
        gradients.append(tape.gradient(loss, [given, epsilon]))
    for stock, got in zip(*gradients, strict=True):
        close(got, stock.numpy())
    square = x.astype(np.float64).var(-1)
    close(gradients[1][1], -(SHAPE[1] * square / (square + NUMBER) ** 2).sum())


def test_forward_mode_that_watches_it(x: np.ndarray) -> None:
    epsilon = tf.constant(NUMBER)
    with tf.autodiff.ForwardAccumulator(epsilon, tf.constant(1.0)) as accumulator:
        y = tf.function(lambda x: _norm(x, epsilon), jit_compile=True)(tf.constant(x))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    square = wide.var(-1, keepdims=True) + NUMBER
    close(y, centred / np.sqrt(square))
    close(accumulator.jvp(y), -0.5 * centred / square**1.5)


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
def test_a_tape_inside_that_watches_it(x: np.ndarray, jit: bool) -> None:
    epsilon = tf.constant(NUMBER)

    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(epsilon)
            loss = tf.reduce_sum(tf.square(_norm(x, epsilon)))
        return tape.gradient(loss, epsilon)

    square = x.astype(np.float64).var(-1)
    got = tf.function(gradient, jit_compile=jit)(tf.constant(x))
    close(got, -(SHAPE[1] * square / (square + NUMBER) ** 2).sum())


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
def test_an_argument_or_a_variable_must_not_fuse(x: np.ndarray, jit: bool) -> None:
    variable = tf.Variable(NUMBER)
    function = tf.function(lambda x, e: _step(x, e) + _step(x, variable), jit_compile=jit)
    for number in (NUMBER, 4.0):
        variable.assign(number)
        results = function(tf.constant(x), tf.constant(number))
        for got, exact in zip(results, 2 * _exact(x, number), strict=True):
            close(got, exact)
    assert not nv_norms_rewriter.report().fused


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
def test_captured_numbers_that_differ_must_not_fuse(x: np.ndarray, jit: bool) -> None:
    epsilon = np.linspace(0.25, 4.0, SHAPE[0])[:, np.newaxis].astype(np.float32)
    captured = tf.constant(epsilon)
    got = tf.function(lambda x: _norm(x, captured), jit_compile=jit)(tf.constant(x))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    close(got, centred / np.sqrt(wide.var(-1, keepdims=True) + epsilon))
    assert not nv_norms_rewriter.report().fused


def test_what_is_saved_takes_the_same_number(x: np.ndarray, tmp_path) -> None:
    module = tf.Module()
    module.epsilon = tf.constant(NUMBER)
    module.norm = tf.function(
        lambda x: _norm(x, module.epsilon), input_signature=[tf.TensorSpec((None, SHAPE[1]))]
    )
    module.norm(tf.constant(x))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    close(loaded.norm(tf.constant(x)), oracle.layer_norm(x, epsilon=NUMBER).y)
    assert not ops_in(loaded.norm.get_concrete_function().graph)
