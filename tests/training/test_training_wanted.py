"""Only some of dx, dgamma and dbeta are asked for; the rest of the gradient is not there at all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import (
    FOUR,
    GROUP,
    INSTANCE,
    LAYER,
    LAYER_NO_CENTER,
    LAYER_NO_SCALE,
    LAYER_PLAIN,
    MOMENTS,
    RMS,
    TF_KERAS_GROUP,
    TF_KERAS_LAYER,
    Norm,
)
from training_steps import assert_as_close_as_stock, check, normal, run_both, spec, step_of

WITH_BETA = (LAYER, GROUP, INSTANCE, MOMENTS, TF_KERAS_LAYER, TF_KERAS_GROUP)


def _check(rng, norm: Norm, wanted: str, fused: bool, known: str = "batch") -> None:
    """`wanted`: letters of x, g, b."""
    x, dy, values, layer, variables = norm.draw(rng)
    names = "x" + ("g" if norm.scale else "") + ("b" if norm.has_beta else "")
    exact = dict(zip(names, norm.backward(dy, x, values), strict=True))

    def make():
        @tf.function(input_signature=[spec(x, known), spec(dy, known)])
        def step(x, dy):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                sources = dict(zip(names, [x, *variables], strict=True))
                tape.watch([sources[name] for name in wanted])
                y = layer(x)
            return y, tape.gradient(y, [sources[name] for name in wanted], dy)

        return step

    backward = {norm.kind: 1} if fused else {}
    expected = [norm.forward(x, values), *(exact[name] for name in wanted)]
    check(make, [x, dy], expected, {norm.kind: 1}, backward)


@pytest.mark.parametrize("norm", [*WITH_BETA, RMS], ids=lambda norm: norm.name)
def test_x_alone(rng, norm: Norm) -> None:
    """Frozen parameters."""
    _check(rng, norm, "x", fused=True)


@pytest.mark.parametrize("norm", [*WITH_BETA, RMS], ids=lambda norm: norm.name)
def test_x_alone_behind_a_constant(rng, norm: Norm) -> None:
    """dy is 3 * y^2; of RMS norms, Grappler makes 3 * (y^2 * gamma)."""
    x, _, values, layer, _ = norm.draw(rng)

    def make():
        @tf.function(input_signature=[spec(x, "static")])
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x) ** 3)
            return tape.gradient(loss, x)

        return step

    y = norm.forward(x, values)
    dx = norm.backward(3.0 * y**2, x, values)[0]
    check(make, [x], [dx], {norm.kind: 1}, {norm.kind: 1}, units=32)


@pytest.mark.parametrize("norm", WITH_BETA, ids=lambda norm: norm.name)
def test_parameters_alone(rng, norm: Norm) -> None:
    """The first layer of a model: nobody wants the gradient of its input."""
    _check(rng, norm, "gb", fused=True)


@pytest.mark.parametrize("norm", [*WITH_BETA, RMS], ids=lambda norm: norm.name)
def test_gamma_alone(rng, norm: Norm) -> None:
    _check(rng, norm, "g", fused=True)


@pytest.mark.parametrize("norm", WITH_BETA, ids=lambda norm: norm.name)
def test_beta_alone(rng, norm: Norm) -> None:
    """A sum of dy, which needs nothing of the norm: it stays the one op that it is."""
    _check(rng, norm, "b", fused=False)


@pytest.mark.parametrize("wanted", ["xg", "xb"])
@pytest.mark.parametrize("norm", [LAYER, GROUP], ids=lambda norm: norm.name)
def test_x_and_one_parameter(rng, norm: Norm, wanted: str) -> None:
    _check(rng, norm, wanted, fused=True)


@pytest.mark.parametrize("known", ["static", "batch"])
@pytest.mark.parametrize(
    "norm,wanted",
    [(LAYER_NO_SCALE, "xb"), (LAYER_NO_CENTER, "xg"), (LAYER_PLAIN, "x"), (RMS, "xg")],
    ids=lambda value: getattr(value, "name", value),
)
def test_absent_parameters(rng, norm: Norm, wanted: str, known: str) -> None:
    _check(rng, norm, wanted, fused=True, known=known)


@pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
def test_first_layer_of_a_network(rng, norm: Norm) -> None:
    """x is data; the weights behind the norm are trained too."""
    x, dy, values, layer, variables = norm.draw(rng)
    weight = normal(rng, norm.shape[-1], norm.shape[-1])
    w = tf.Variable(weight)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((layer(x) @ w) * dy)
            return tape.gradient(loss, [*variables, w])

        return step

    axes = list(range(x.ndim - 1))
    dw = np.tensordot(norm.forward(x, values), np.float64(dy), (axes, axes))
    _, *rest = norm.backward(np.float64(dy) @ weight.T, x, values)
    check(make, [x, dy], [*rest, dw], {norm.kind: 1}, {norm.kind: 1})


@pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
def test_inference_beside_training(rng, norm: Norm) -> None:
    """A forward of which nobody asks for a gradient."""
    x, dy = normal(rng, *norm.shape), normal(rng, *norm.shape)
    values = norm.parameters(rng)
    layer, variables = norm.build(values)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            teacher = tf.stop_gradient(layer(tf.reverse(x, [0])))
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(layer(x) - teacher) * dy)
            return tape.gradient(loss, [x, *variables])

        return step

    apart = norm.forward(x, values) - norm.forward(x[::-1], values)
    exact = norm.backward(2.0 * apart * dy, x, values)
    check(make, [x, dy], exact, {norm.kind: 2}, {norm.kind: 1}, units=32)


@pytest.mark.parametrize(
    "norm", [*FOUR, MOMENTS, TF_KERAS_LAYER, TF_KERAS_GROUP], ids=lambda norm: norm.name
)
def test_batch_of_one(rng, norm: Norm) -> None:
    """A sum over one example is none: dgamma is then what else would be summed."""
    x, dy = normal(rng, 1, *norm.shape[1:], mean=1.0), normal(rng, 1, *norm.shape[1:])
    values = norm.parameters(rng)
    layer, variables = norm.build(values)
    stock, fused, report = run_both(step_of(layer, variables, x, dy, "static"), [x, dy])
    exact = [norm.forward(x, values), *norm.backward(dy, x, values)]
    assert_as_close_as_stock(stock, fused, exact)
    (backward,) = (record for record in report.fused if record.direction == "backward")
    assert len(backward.outputs) == 1 + len(variables), report
    assert not report.refused, report
