"""x of one row: a parameter's gradient is a product there, and may be another norm's output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm, placeholder, run, trace, v1

import oracle
from nv_norms_rewriter import Report, rewrite

EPSILON = 1e-3


def _values(rng: np.random.Generator, sizes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: rng.normal(1, 0.5, size).astype(np.float32) for name, size in sizes.items()}


def _rewritten(make: Callable[[], None], values, fetches: list[str]) -> tuple[list, list, Report]:
    """What the graph gives as it was made and rewritten."""
    graph: v1.GraphDef = trace(make)
    after, report = rewrite(graph, fetches=fetches)
    names = [f"{fetch}:0" for fetch in fetches]
    return run(graph, values, names), run(after, values, names), report


@pytest.mark.parametrize("shape", [(1, 8), (1, 1, 8)], ids=str)
@pytest.mark.parametrize("times", [2, 3])
def test_gamma_that_is_a_factor_more_than_once(rng, shape: tuple[int, ...], times: int) -> None:
    """Of y = xhat * gamma * gamma, xhat * gamma is y and, gamma being its dy, dgamma, too."""
    values = _values(rng, {"x": shape, "gamma": shape, "beta": shape})

    def make() -> None:
        given = [placeholder(name, shape) for name in ("x", "gamma", "beta")]
        x, gamma, beta = given
        y = layer_norm(x, -1, EPSILON)
        for _ in range(times):
            y = y * gamma
        tf.identity(y + beta, name="y")
        for name, gradient in zip("abc", tf.gradients(y + beta, given), strict=True):
            tf.identity(gradient, name=name)

    before, after, report = _rewritten(make, values, ["y", "a", "b", "c"])
    x, gamma = values["x"], values["gamma"].astype(np.float64)
    xhat = oracle.layer_norm(x, epsilon=EPSILON).y
    dx = oracle.backward(np.ones(shape), x, (gamma**times).reshape(8), (-1,), (-1,), EPSILON).dx
    exact = [xhat * gamma**times + values["beta"], dx, times * xhat * gamma ** (times - 1)]
    for got in (before, after):
        for one, want in zip(got, [*exact, np.ones(shape)], strict=True):
            np.testing.assert_allclose(one, want, 2e-5, 2e-5 * np.abs(want).max())
    assert any(record.direction == "forward" for record in report.fused)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gamma_shape", [(8,), (1, 8)], ids=str)
@pytest.mark.parametrize("of", ["x", "z", "xz", "xzg"])
@pytest.mark.parametrize("loss", [tf.sin, lambda d: d * tf.range(8.0)], ids=["sin", "weights"])
def test_gradients_of_the_gradient_of_gamma(rng, gamma_shape, of: str, loss: Callable) -> None:
    """dy * xhat, of which dgamma is made, is itself a norm, with dy as its gamma."""
    shapes = {"x": (1, 8), "z": (1, 8), "g": gamma_shape}
    values = _values(rng, shapes)
    fetches = ["y", *(f"d{name}" for name in of)]

    def make() -> None:
        given = {name: placeholder(name, shape) for name, shape in shapes.items()}
        y = layer_norm(given["x"], -1, EPSILON, given["g"])
        tf.identity(y, name="y")
        dgamma = tf.gradients(tf.sin(y) * given["z"], given["g"])[0]
        gradients = tf.gradients(loss(dgamma), [given[name] for name in of])
        for name, gradient in zip(of, gradients, strict=True):
            tf.identity(gradient, name=f"d{name}")

    before, after, report = _rewritten(make, values, fetches)
    for one, want in zip(after, before, strict=True):
        np.testing.assert_allclose(one, want, 2e-5, 2e-5 * np.abs(want).max())
    assert report.fused
