"""An epsilon that is a tensor made beforehand, which the function captures, is an argument of it:
somebody may differentiate by it, or put another in its place. The norm is left as it is."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from traced import close, ops_in

import oracle

pytestmark = pytest.mark.usefixtures("every_norm")

SHAPE = (6, 16)
NUMBER = 0.25


def _norm(x: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + epsilon)


def _gradient_of_epsilon(x: np.ndarray) -> float:
    """Of sum(y^2)."""
    square = x.astype(np.float64).var(-1)
    return -(SHAPE[1] * square / (square + NUMBER) ** 2).sum()


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(1.0, 0.5, SHAPE).astype(np.float32)


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("differentiated", [False, True], ids=["called", "differentiated"])
def test_a_tape_that_watches_it_later(x: np.ndarray, differentiated: bool, jit: bool) -> None:
    epsilon, given = tf.constant(NUMBER), tf.constant(x)
    function = tf.function(lambda x: _norm(x, epsilon), jit_compile=jit)

    def gradient(by: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(by)
            loss = tf.reduce_sum(tf.square(function(given)))
        return tape.gradient(loss, by)

    function(given)
    if differentiated:
        gradient([given])
    close(gradient([given, epsilon])[1], _gradient_of_epsilon(x))


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
def test_another_capture_in_its_place(x: np.ndarray, jit: bool) -> None:
    epsilon, given = tf.constant(NUMBER), tf.constant(x)
    function = tf.function(lambda x: _norm(x, epsilon), jit_compile=jit)
    concrete = function.get_concrete_function(given)
    close(concrete(given), oracle.layer_norm(x, epsilon=NUMBER).y)
    assert not ops_in(concrete.graph)
    concrete.set_external_captures([tf.constant(4.0)])
    close(concrete(given), oracle.layer_norm(x, epsilon=4.0).y)


@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
def test_a_capture_that_is_deferred_while_traced(x: np.ndarray, jit: bool) -> None:
    epsilon, variable = tf.constant(NUMBER), tf.Variable(4.0)

    def norm(x: tf.Tensor) -> tf.Tensor:
        y = _norm(x, epsilon)
        graph = tf.compat.v1.get_default_graph()
        (inner,) = (inner for outer, inner in graph.captures if outer is epsilon)
        graph.replace_capture_with_deferred_capture(
            epsilon, variable.read_value, tf.TensorSpec((), tf.float32), placeholder=inner
        )
        return y

    function = tf.function(norm, jit_compile=jit)
    for number in (4.0, 1.0):
        variable.assign(number)
        close(function(tf.constant(x)), oracle.layer_norm(x, epsilon=number).y)
