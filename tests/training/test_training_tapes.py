"""Tapes as people use them: outside of the function, persistent, nested, watched twice."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import ALL, FOUR, LAYER, RMS, Norm
from training_steps import (
    check,
    normal,
    spec,
)

NORMS = pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "norm,known",
    [
        *(pytest.param(norm, "batch", id=f"{norm.name}-batch") for norm in ALL),
        *(pytest.param(norm, "static", id=f"{norm.name}-static") for norm in FOUR),
    ],
)
def test_tape_outside_of_the_function(rng, norm: Norm, known: str) -> None:
    """Forward and backward are two functions: the fused op is there before it is differentiated.

    (From the second alone nobody could tell that its argument w is rstd * gamma, say, and over
    which axes the mean went.)
    """

    def tapes(function, x, dy, variables):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, [x, *variables], dy)

    _check_outside(rng, norm, tapes, known)


def _check_outside(rng, norm: Norm, tapes, known: str = "batch", times: int = 1) -> None:
    """tapes(function, x, dy, variables) returns y, and `times` times its gradients."""
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        function = tf.function(layer, input_signature=[spec(x, known)])
        return lambda x, dy: tapes(function, x, dy, variables)

    exact = [norm.forward(x, values), *(times * norm.backward(dy, x, values))]
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1})


@NORMS
def test_persistent_tape_outside_of_the_function(rng, norm: Norm) -> None:
    """One backward function, called for each of two gradients."""

    def tapes(function, x, dy, variables):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = function(x)
        return y, [tape.gradient(y, [x, *variables], dy) for _ in range(2)]

    _check_outside(rng, norm, tapes, times=2)


@NORMS
def test_two_tapes_outside_of_the_function(rng, norm: Norm) -> None:
    def tapes(function, x, dy, variables):
        with tf.GradientTape() as one, tf.GradientTape() as two:
            one.watch(x)
            two.watch(x)
            y = function(x)
        return y, [tape.gradient(y, [x, *variables], dy) for tape in (one, two)]

    _check_outside(rng, norm, tapes, times=2)


@NORMS
def test_tape_outside_of_a_function_that_calls_another(rng, norm: Norm) -> None:
    def tapes(function, x, dy, variables):
        outer = tf.function(lambda x: function(x), autograph=False)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = outer(x)
        return y, tape.gradient(y, [x, *variables], dy)

    _check_outside(rng, norm, tapes)


def gradients_of_two_losses(layer, sources, dy, other):
    """y of x, the first source, and the gradients of sum(y * dy) and of sum(tanh(y) * other)."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources[0])
        y = layer(sources[0])
        first, second = tf.reduce_sum(y * dy), tf.reduce_sum(tf.tanh(y) * other)
    return y, tape.gradient(first, sources), tape.gradient(second, sources)


@NORMS
def test_two_gradients_of_one_forward(rng, norm: Norm) -> None:
    """A persistent tape: two losses, each with a gradient of its own."""
    x, dy, values, layer, variables = norm.draw(rng)
    other = normal(rng, *norm.shape)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy), spec(other)])
        def step(x, dy, other):
            return gradients_of_two_losses(layer, [x, *variables], dy, other)[1:]

        return step

    dtanh = 1 - np.tanh(norm.forward(x, values)) ** 2
    exact = [*norm.backward(dy, x, values), *norm.backward(other * dtanh, x, values)]
    check(make, [x, dy, other], exact, {norm.kind: 1}, {norm.kind: 2})


@NORMS
@pytest.mark.parametrize("known", ["static", "batch"])
def test_two_gradients_of_one_forward_in_one_sum(rng, norm: Norm, known: str) -> None:
    """Two losses, whose gradients are added: the terms of both dx end in one AddN."""
    x, dy, values, layer, variables = norm.draw(rng)
    other = normal(rng, *norm.shape)

    def make():
        @tf.function(input_signature=[spec(a, known) for a in (x, dy, other)])
        def step(x, dy, other):
            y, *both = gradients_of_two_losses(layer, [x, *variables], dy, other)
            return y, [a + b for a, b in zip(*both, strict=True)]

        return step

    dtanh = 1 - np.tanh(norm.forward(x, values)) ** 2
    both = (norm.backward(dy, x, values), norm.backward(other * dtanh, x, values))
    exact = [norm.forward(x, values), *(a + b for a, b in zip(*both, strict=True))]
    check(make, [x, dy, other], exact, {norm.kind: 1}, {norm.kind: 2})


@NORMS
def test_two_gradients_of_one_forward_used_twice(rng, norm: Norm) -> None:
    """One layer is called twice with one x: two forwards that share their moments, and one AddN."""
    x, dy, values, layer, variables = norm.draw(rng)
    other = normal(rng, *norm.shape)

    def make():
        @tf.function(input_signature=[spec(a) for a in (x, dy, other)])
        def step(x, dy, other):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x) * dy) + tf.reduce_sum(tf.tanh(layer(x)) * other)
            return loss, tape.gradient(loss, [x, *variables])

        return step

    y = norm.forward(x, values)
    dtanh = 1 - np.tanh(y) ** 2
    both = (norm.backward(dy, x, values), norm.backward(other * dtanh, x, values))
    exact = [(y * dy).sum() + (np.tanh(y) * other).sum()]
    exact += [a + b for a, b in zip(*both, strict=True)]
    two = {norm.kind: 2}
    check(make, [x, dy, other], exact, two, two, units=32)


@NORMS
def test_sources_of_a_persistent_tape_one_by_one(rng, norm: Norm) -> None:
    """dx by one call, the parameters' gradients by another: one gradient, once Grappler is done."""
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x) * dy)
            return tape.gradient(loss, x), tape.gradient(loss, variables)

        return step

    check(make, [x, dy], norm.backward(dy, x, values), {norm.kind: 1}, {norm.kind: 1})


@NORMS
def test_two_tapes(rng, norm: Norm) -> None:
    """As in a GAN: two tapes watch the same forward, each asks for other variables."""
    x, dy, values, layer, variables = norm.draw(rng)
    other = normal(rng, *norm.shape)
    weight = tf.Variable(normal(rng, *norm.shape[1:]))

    def make():
        @tf.function(input_signature=[spec(x), spec(dy), spec(other)])
        def step(x, dy, other):
            with tf.GradientTape() as one, tf.GradientTape() as two:
                y = layer(x * weight)
                first, second = tf.reduce_sum(y * dy), tf.reduce_sum(y * other)
            return one.gradient(first, [weight, *variables]), two.gradient(second, variables)

        return step

    inner = np.float64(x) * weight.numpy()
    ds, *rest = norm.backward(dy, inner, values)
    _, *rest2 = norm.backward(other, inner, values)
    exact = [(ds * x).sum(0), *rest, *rest2]
    check(make, [x, dy, other], exact, {norm.kind: 1}, {norm.kind: 2})


@NORMS
def test_recompute_grad(rng, norm: Norm) -> None:
    """The forward stands twice; the gradient belongs to the second."""
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            block = tf.recompute_grad(lambda value: tf.tanh(layer(value)))
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(block(x) * dy)
            return loss, tape.gradient(loss, [x, *variables])

        return step

    y = np.tanh(norm.forward(x, values))
    exact = [np.sum(y * dy), *norm.backward(dy * (1 - y**2), x, values)]
    check(make, [x, dy], exact, {norm.kind: 2}, {norm.kind: 1}, units=64)


@NORMS
def test_custom_gradient_around_a_norm(rng, norm: Norm) -> None:
    """The gradient that the user gives is the one that counts."""
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        @tf.custom_gradient
        def doubled(y):
            return tf.identity(y), lambda dy: 2.0 * dy

        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(doubled(layer(x)) * dy)
            return tape.gradient(loss, [x, *variables])

        return step

    check(make, [x, dy], norm.backward(2.0 * dy, x, values), {norm.kind: 1}, {norm.kind: 1})


@NORMS
def test_gradients_of_v1_graphs(rng, norm: Norm) -> None:
    """tf.gradients with grad_ys, and the aggregation of a v1 optimizer."""
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            y = layer(x)
            return y, tf.gradients(y, [x, *variables], grad_ys=dy)

        return step

    exact = [norm.forward(x, values), *norm.backward(dy, x, values)]
    check(make, [x, dy], exact, {norm.kind: 1}, {norm.kind: 1})


def test_control_dependencies(rng) -> None:
    """A step counter that waits for the forward, and a gradient that waits for the counter."""
    x, dy, values, layer, variables = LAYER.draw(rng)
    counter = tf.Variable(0.0)

    def make():
        counter.assign(0.0)

        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            with tf.control_dependencies([y]):
                first = tf.identity(counter.assign_add(1.0))
            with tf.control_dependencies([first]):
                dx, *rest = tape.gradient(y, [x, *variables], dy)
            with tf.control_dependencies([dx, *rest]):
                second = tf.identity(counter.assign_add(10.0))
            return first, second, y, dx, rest

        return step

    exact = [LAYER.forward(x, values), *LAYER.backward(dy, x, values)]
    exact = [np.float64(1), np.float64(11), *exact]
    check(make, [x, dy], exact, {"layer_norm": 1}, {"layer_norm": 1})


def test_variables_are_updated_after_their_gradients(rng) -> None:
    """gamma is read before it is assigned, in the fused op too; the next norm, which has the first
    one's moments and waits for its gradient, reads it after."""
    x, dy, values, layer, variables = LAYER.draw(rng)

    def make():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = first = layer(x)
            gradients = tape.gradient(y, [x, *variables], dy)
            for variable, gradient in zip(variables, gradients[1:], strict=True):
                variable.assign_sub(0.1 * gradient)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            return first, gradients, y, tape.gradient(y, [x, *variables], dy)

        return step

    dx, *rest = LAYER.backward(dy, x, values)
    later = [np.float64(v) - 0.1 * g for v, g in zip(values, rest, strict=True)]
    exact = [LAYER.forward(x, values), dx, *rest]
    exact += [LAYER.forward(x, later), *LAYER.backward(dy, x, later)]
    check(make, [x, dy], exact, {"layer_norm": 2}, {"layer_norm": 2}, units=16)


@NORMS
def test_gradient_alone_without_the_output(rng, norm: Norm) -> None:
    """Nobody reads y, so that Grappler drops it (an RMS norm's is a factor of the gradient)."""
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            return tape.gradient(y, [x, *variables], dy)

        return step

    forward = {norm.kind: 1} if norm is RMS else {}
    check(make, [x, dy], norm.backward(dy, x, values), forward, {norm.kind: 1})
