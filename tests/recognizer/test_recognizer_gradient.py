"""Gradients that are the textbook's, that are nearly so, and that other terms are mixed with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm, placeholder, run, trace, v1

import oracle
from nv_norms_rewriter import rewrite

EPSILON = 1e-3


def _values(rng: np.random.Generator, shape: tuple[int, ...] = (3, 8)) -> dict[str, np.ndarray]:
    draw = {"x": rng.normal(1.0, 2.0, shape), "dy": rng.normal(size=shape)}
    draw |= {"gamma": rng.uniform(0.5, 2, shape[-1]), "beta": rng.normal(size=shape[-1])}
    return {name: value.astype(np.float32) for name, value in draw.items()}


def _check(values, norm, loss, expected, backward: bool, shape=(None, 8)) -> None:
    """The gradients of `loss` by x, gamma and beta are as expected, before and after."""

    def make() -> None:
        x, dy = placeholder("x", shape), placeholder("dy", shape)
        gamma, beta = placeholder("gamma", (shape[-1],)), placeholder("beta", (shape[-1],))
        y = norm(x, gamma, beta)
        total = tf.reduce_sum(loss(x, gamma, beta, y, dy))
        tf.identity(total, name="total")
        for name, gradient in zip("abc", tf.gradients(total, [x, gamma, beta]), strict=True):
            tf.identity(gradient, name=name)

    graph = trace(make)
    after, report = rewrite(graph, fetches=["total", "a", "b", "c"])
    for each in (graph, after):
        got = run(each, values, ["a:0", "b:0", "c:0"])
        for one, want in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, want, 5e-5, 5e-5)
    fused = [record for record in report.fused if record.direction == "backward"]
    assert bool(fused) == backward


def _layer(x, gamma, beta):
    return layer_norm(x, -1, EPSILON, gamma, beta)


def _textbook(values, dy=None):
    dy = values["dy"] if dy is None else dy
    return oracle.backward(dy, values["x"], values["gamma"], (-1,), (-1,), EPSILON)


def test_layer_norm(rng) -> None:
    values = _values(rng)
    _check(values, _layer, lambda x, g, b, y, dy: y * dy, _textbook(values), True)


def test_sizes_that_coincide(rng) -> None:
    values = _values(rng, (8, 8, 8))
    loss = lambda x, g, b, y, dy: y * dy  # noqa: E731
    _check(values, _layer, loss, _textbook(values), True, (8, 8, 8))


def test_residual_around_the_norm(rng) -> None:
    values = _values(rng)
    dx, dgamma, dbeta = _textbook(values)
    loss = lambda x, g, b, y, dy: (y + x) * dy  # noqa: E731
    _check(values, _layer, loss, (dx + values["dy"], dgamma, dbeta), True)


def test_gradient_that_comes_from_y_itself(rng) -> None:
    values = _values(rng)
    y = oracle.layer_norm(values["x"], values["gamma"], values["beta"], epsilon=EPSILON).y
    loss = lambda x, g, b, y, dy: y * y * dy  # noqa: E731
    _check(values, _layer, loss, _textbook(values, 2 * y * values["dy"]), True)


def test_gamma_and_beta_that_the_loss_reads_too(rng) -> None:
    values = _values(rng)
    dx, dgamma, dbeta = _textbook(values)
    g, b = (values[name].astype(np.float64) for name in ("gamma", "beta"))
    loss = lambda x, g, b, y, dy: tf.reduce_sum(y * dy) + tf.reduce_sum(g * g * b)  # noqa: E731
    _check(values, _layer, loss, (dx, dgamma + 2 * g * b, dbeta + g * g), True)


@pytest.mark.parametrize("stopped", ["mean", "variance", "xhat"])
def test_gradient_that_is_stopped_half_way(rng, stopped: str) -> None:
    """dx is another one than the textbook's; dgamma and dbeta are the same."""

    def norm(x, gamma, beta):
        stop = {stopped: tf.stop_gradient}
        mean = stop.get("mean", tf.identity)(tf.reduce_mean(x, -1, keepdims=True))
        squares = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        variance = stop.get("variance", tf.identity)(squares)
        xhat = stop.get("xhat", tf.identity)((x - mean) * tf.math.rsqrt(variance + EPSILON))
        return xhat * gamma + beta + x

    values = _values(rng)
    _, dgamma, dbeta = _textbook(values)
    xhat, _, rstd = oracle.normalize(values["x"], (-1,), EPSILON, True)
    w = values["dy"].astype(np.float64) * values["gamma"]
    along = (w * xhat).mean(-1, keepdims=True)
    dx = {
        "mean": rstd * (w - xhat * along),
        "variance": rstd * (w - w.mean(-1, keepdims=True)),
        "xhat": 0.0,
    }[stopped]
    expected = (dx + values["dy"], dgamma, dbeta)
    _check(values, norm, lambda x, g, b, y, dy: y * dy, expected, True)


@pytest.fixture
def old_control_flow() -> Iterator[None]:
    """Switch and Merge in place of If."""
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


@pytest.mark.parametrize("taken", [True, False])
def test_gradient_through_a_branch(rng, old_control_flow, taken: bool) -> None:
    values = _values(rng)

    def make() -> None:
        x, dy = placeholder("x", (None, 8)), placeholder("dy", (None, 8))
        p = placeholder("p", (), tf.bool)
        gamma = placeholder("gamma", (8,))
        y = v1.cond(p, lambda: layer_norm(x, gamma=gamma), lambda: x * gamma)
        tf.identity(tf.gradients(y, x, dy)[0], name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    feeds = {name: values[name] for name in ("x", "dy", "gamma")} | {"p": taken}
    expected = _textbook(values).dx if taken else values["dy"] * values["gamma"]
    for each in (graph, after):
        np.testing.assert_allclose(run(each, feeds), expected, 5e-5, 5e-5)
