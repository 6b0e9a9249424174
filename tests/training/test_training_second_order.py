"""Jacobians and second derivatives: never fused wrongly. What cannot be fused is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import (
    CENTRED,
    FOUR,
    GROUP,
    LAYER,
    LLAMA,
    MOMENTS,
    RMS,
    TF_KERAS_LAYER,
    Norm,
)
from training_steps import assert_as_close_as_stock, assert_counts, check, normal, run_both, spec

import oracle

NORMS = pytest.mark.parametrize("norm", [*FOUR, MOMENTS, LLAMA], ids=lambda norm: norm.name)
STEP = 1e-5


def _penalty(rng, norm: Norm, known: str, fetch_y: bool = True, tapes_outside: bool = False):
    """A loss that holds the size of dx, as in WGAN-GP; its gradient is a second derivative.

    Returns what `check` takes first: make, arrays, exact.
    """
    x, dy, values, layer, variables = norm.draw(rng)

    def make():
        forward = tf.function(layer, input_signature=[spec(x, known)]) if tapes_outside else layer

        def step(x, dy):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = forward(x)
                    loss = tf.reduce_sum(y * dy)
                dx = inner.gradient(loss, x)
                penalty = loss + tf.reduce_sum(tf.square(dx))
            gradients = outer.gradient(penalty, [x, *variables])
            return (y, dx, gradients) if fetch_y else (dx, gradients)

        signature = [spec(x, known), spec(dy, known)]
        return step if tapes_outside else tf.function(step, input_signature=signature)

    def penalty(x, *values):
        loss = (norm.forward(x, values) * dy).sum()
        return loss + (norm.backward(dy, x, values)[0] ** 2).sum()

    exact = [norm.backward(dy, x, values)[0], *oracle.central_differences(penalty, [x, *values])]
    return make, [x, dy], ([norm.forward(x, values)] if fetch_y else []) + exact


@pytest.mark.sampled(3)
@NORMS
@pytest.mark.parametrize("known", ["static", "batch"])
def test_gradient_penalty(rng, norm: Norm, known: str) -> None:
    one = {norm.kind: 1}
    check(*_penalty(rng, norm, known), one, one, units=32)


@pytest.mark.sampled(3)
@NORMS
def test_gradient_penalty_by_tapes_outside_of_the_function(rng, norm: Norm) -> None:
    """The function's gradient is another function, whose gradient is a third."""
    one = {norm.kind: 1}
    check(*_penalty(rng, norm, "batch", tapes_outside=True), one, one, units=32)


@pytest.mark.sampled(6)
@NORMS
@pytest.mark.parametrize("batched", [False, True], ids=["jacobian", "batch_jacobian"])
def test_jacobian(rng, norm: Norm, batched: bool) -> None:
    """A gradient for each of some elements of y, all in one graph: dy has an axis more than x."""
    shape = (2, *norm.shape[1:])
    x, values = normal(rng, *shape, mean=1.0), norm.parameters(rng)
    layer, _ = norm.build(values)
    batch = slice(None) if batched else 0

    def make():
        @tf.function(input_signature=[spec(x, "static")])
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
                row = y[batch, ..., 0]
            return y, (tape.batch_jacobian if batched else tape.jacobian)(row, x)

        return step

    inner = shape[1:-1]
    exact = np.zeros((2, *inner, *shape[1:]) if batched else (*inner, *shape))
    for at in np.ndindex(inner):
        dy = np.zeros(shape)
        dy[(batch, *at, 0)] = 1.0
        exact[(slice(None), *at) if batched else at] = norm.backward(dy, x, values)[0]
    exact = [norm.forward(x, values), exact]
    check(make, [x], exact, {norm.kind: 1}, {}, {"backward: no_gradient": 1})


@pytest.mark.sampled(3)
@NORMS
def test_forward_mode(rng, norm: Norm) -> None:
    """A Jacobian-vector product: the derivative of y along a direction."""
    x, direction, values, layer, _ = norm.draw(rng)

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


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "norm,forward,backward,refused",
    [
        *((norm, 1, 1, {}) for norm in (*FOUR, LLAMA)),
        # The derivative of the gradient has other terms than a gradient has, and nodes in common.
        # xhat stands for itself there, a norm without gamma and beta;
        (CENTRED, 2, 0, {"backward: no_gradient": 2}),
        # FusedBatchNormGradV3's own gradient takes a root that leads to no y.
        (TF_KERAS_LAYER, 1, 0, {"backward: sizes_unknown": 1, "forward: no_output": 1}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_hessian_vector_product(rng, norm: Norm, forward: int, backward: int, refused) -> None:
    """Forward over backward, of a loss that is curved itself."""
    x, direction, values, layer, _ = norm.draw(rng)

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

    stock, fused, report = run_both(make, [x, direction])
    kinds = [{norm.kind: count} if count else {} for count in (forward, backward)]
    assert_counts(report, *kinds, refused)
    if norm in _EXACT:
        wide = np.float64(x)
        above, below = (gradient(wide + s * STEP * direction) for s in (1, -1))
        exact = [gradient(wide), (above - below) / (2 * STEP)]
    else:
        exact = [np.float64(s) for s in stock]
    assert_as_close_as_stock(stock, fused, exact, units=64)


def test_gradient_penalty_of_a_norm_that_shares_its_differences(rng) -> None:
    """d = x - mean stands in the norm and in its gradient, which is differentiated again."""
    make, arrays, exact = _penalty(rng, CENTRED, "batch", fetch_y=False)
    two = {CENTRED.kind: 2}  # of which Grappler has made two each
    check(make, arrays, exact, two, two, units=32)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("norm", [LAYER, RMS, GROUP], ids=lambda norm: norm.name)
def test_third_derivative(rng, norm: Norm) -> None:
    """Of a product with a direction's curvature; the second and third are TensorFlow's own."""
    x, dy, values, layer, _ = norm.draw(rng)
    direction = normal(rng, *x.shape)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy), spec(direction)])
        def step(x, dy, direction):
            y = layer(x)
            out, value = [y], tf.reduce_sum(tf.tanh(y) * dy)
            for _ in range(3):
                out += tf.gradients(value, x)
                value = tf.reduce_sum(out[-1] * direction)
            return out

        return step

    arrays = [x, dy, direction]
    stock, fused, report = run_both(make, arrays)
    if norm in _EXACT:
        wide, far = np.float64(x), 1e-4

        def gradient(x):
            return norm.backward(dy * (1 - np.tanh(norm.forward(x, values)) ** 2), x, values)[0]

        def product(x):
            above, below = (gradient(x + s * far * direction) for s in (1, -1))
            return (above - below) / (2 * far)

        exact = [norm.forward(x, values), gradient(wide), product(wide)]
        curvature = oracle.central_differences(lambda x: (product(x) * direction).sum(), [x], far)
        exact += curvature
    else:
        exact = [np.float64(s) for s in stock]
    assert_as_close_as_stock(stock, fused, exact, units=64)
    assert_counts(report, {norm.kind: 1}, {norm.kind: 1})
