"""Jacobians and second derivatives: never fused wrongly. What cannot be fused is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from training_norms import CENTRED, FOUR, LLAMA, MOMENTS, RMS, TF_KERAS_LAYER, Norm
from training_steps import assert_as_close_as_stock, check, normal, run_both, spec

NORMS = pytest.mark.parametrize("norm", [*FOUR, MOMENTS, LLAMA], ids=lambda norm: norm.name)
STEP = 1e-5


def _inputs(rng, norm: Norm):
    x, dy = normal(rng, *norm.shape, mean=1.0), normal(rng, *norm.shape)
    values = norm.parameters(rng)
    layer, variables = norm.build(values)
    return x, dy, values, layer, variables


def central(function: Callable[..., float], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The gradient of a number by each array, by central differences in float64."""
    arrays = [np.float64(array) for array in arrays]
    out = []
    for array in arrays:
        gradient = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            kept = array[at]
            array[at] = kept + STEP
            above = function(*arrays)
            array[at] = kept - STEP
            gradient[at] = (above - function(*arrays)) / (2 * STEP)
            array[at] = kept
        out.append(gradient)
    return out


@NORMS
@pytest.mark.parametrize("known", ["static", "batch"])
def test_gradient_penalty(rng, norm: Norm, known: str) -> None:
    """The loss holds the size of dx, as in WGAN-GP; its gradient is a second derivative."""
    x, dy, values, layer, variables = _inputs(rng, norm)

    def make():
        @tf.function(input_signature=[spec(x, known), spec(dy, known)])
        def step(x, dy):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = layer(x)
                    loss = tf.reduce_sum(y * dy)
                dx = inner.gradient(loss, x)
                penalty = loss + tf.reduce_sum(tf.square(dx))
            return y, dx, outer.gradient(penalty, [x, *variables])

        return step

    def penalty(x, *values):
        loss = (norm.forward(x, values) * dy).sum()
        return loss + (norm.backward(dy, x, values)[0] ** 2).sum()

    exact = [norm.backward(dy, x, values)[0], *central(penalty, [x, *values])]
    exact = [norm.forward(x, values), *exact]
    one = {norm.kind: 1}
    check(make, [x, dy], exact, one, one, units=32)


@NORMS
def test_jacobian(rng, norm: Norm) -> None:
    """A gradient for each element of y, all in one graph."""
    shape = (2, *norm.shape[1:])
    x, values = normal(rng, *shape, mean=1.0), norm.parameters(rng)
    layer, _ = norm.build(values)

    def make():
        @tf.function(input_signature=[spec(x, "static")])
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
                row = y[0, ..., 0]
            return y, tape.jacobian(row, x)

        return step

    inner = shape[1:-1]
    exact = np.zeros((*inner, *shape))
    for at in np.ndindex(inner):
        dy = np.zeros(shape)
        dy[(0, *at, 0)] = 1.0
        exact[at] = norm.backward(dy, x, values)[0]
    exact = [norm.forward(x, values), exact]
    check(make, [x], exact, {norm.kind: 1}, {})


@NORMS
def test_batch_jacobian(rng, norm: Norm) -> None:
    shape = (2, *norm.shape[1:])
    x, values = normal(rng, *shape, mean=1.0), norm.parameters(rng)
    layer, _ = norm.build(values)

    def make():
        @tf.function(input_signature=[spec(x, "static")])
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
                column = y[..., 0]
            return y, tape.batch_jacobian(column, x)

        return step

    inner = shape[1:-1]
    exact = np.zeros((2, *inner, *shape[1:]))
    for at in np.ndindex(inner):
        dy = np.zeros(shape)
        dy[(slice(None), *at, 0)] = 1.0
        exact[(slice(None), *at)] = norm.backward(dy, x, values)[0]
    exact = [norm.forward(x, values), exact]
    check(make, [x], exact, {norm.kind: 1}, {})


@NORMS
def test_forward_mode(rng, norm: Norm) -> None:
    """A Jacobian-vector product: the derivative of y along a direction."""
    x, direction, values, layer, _ = _inputs(rng, norm)

    def make():
        @tf.function(input_signature=[spec(x), spec(direction)])
        def step(x, direction):
            with tf.autodiff.ForwardAccumulator(x, direction) as accumulator:
                y = layer(x)
            return y, accumulator.jvp(y)

        return step

    wide = np.float64(x)
    above, below = (norm.forward(wide + s * STEP * direction, values) for s in (1, -1))
    exact = [norm.forward(x, values), (above - below) / (2 * STEP)]
    check(make, [x, direction], exact, {norm.kind: 1}, {}, {"backward: no_gradient": 1}, units=16)


# tf.nn.moments, which the other layers call, stops a gradient that is zero, but whose own gradient
# is not: stock TensorFlow's product with a Hessian is then another one than the formula's.
_EXACT = (RMS, CENTRED, TF_KERAS_LAYER, LLAMA)


@pytest.mark.parametrize("norm", [*FOUR, *_EXACT[1:]], ids=lambda norm: norm.name)
def test_hessian_vector_product(rng, norm: Norm) -> None:
    """Forward over backward, of a loss that is curved itself."""
    x, direction, values, layer, _ = _inputs(rng, norm)

    def make():
        @tf.function(input_signature=[spec(x), spec(direction)])
        def step(x, direction):
            with tf.autodiff.ForwardAccumulator(x, direction) as accumulator:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    loss = tf.reduce_sum(tf.tanh(layer(x)))
                dx = tape.gradient(loss, x)
            return dx, accumulator.jvp(dx)

        return step

    def gradient(x):
        return norm.backward(1 - np.tanh(norm.forward(x, values)) ** 2, x, values)[0]

    stock, fused, _ = run_both(make, [x, direction])
    if norm in _EXACT:
        wide = np.float64(x)
        above, below = (gradient(wide + s * STEP * direction) for s in (1, -1))
        exact = [gradient(wide), (above - below) / (2 * STEP)]
    else:
        exact = [np.float64(s) for s in stock]
    assert_as_close_as_stock(stock, fused, exact, units=64)


def test_gradient_penalty_of_a_norm_that_shares_its_differences(rng) -> None:
    """d = x - mean stands in the norm and in its gradient, which is differentiated again."""
    x, dy, values, layer, variables = _inputs(rng, CENTRED)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum(layer(x) * dy)
                dx = inner.gradient(loss, x)
                penalty = loss + tf.reduce_sum(tf.square(dx))
            return dx, outer.gradient(penalty, [x, *variables])

        return step

    def penalty(x, *values):
        loss = (CENTRED.forward(x, values) * dy).sum()
        return loss + (CENTRED.backward(dy, x, values)[0] ** 2).sum()

    exact = [CENTRED.backward(dy, x, values)[0], *central(penalty, [x, *values])]
    stock, fused, _ = run_both(make, [x, dy])
    assert_as_close_as_stock(stock, fused, exact, units=32)
