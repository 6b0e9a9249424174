"""tf.vectorized_map and jacobians over functions whose norms are fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf
from training_norms import EPSILON
from training_steps import normal

import nv_norms
import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _process

N, SHAPE = 5, (3, 4, 6, 8)


@pytest.fixture(autouse=True)
def _everything_is_fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(_process.state()["options"], "xla", "all")
    nv_norms_rewriter.clear_report()
    yield


def _layer(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return nv_norms.fused_layer_norm(x, gamma, beta, epsilon=EPSILON)[0]


def _instance(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return nv_norms.fused_instance_norm(x, gamma, beta, epsilon=EPSILON)[0]


def _group(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return nv_norms.fused_group_norm(x, gamma, beta, groups=4, epsilon=EPSILON)[0]


def _rms(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return nv_norms.fused_rms_norm(x, gamma, epsilon=EPSILON)[0] + beta


def _exact(norm: Callable, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    if norm is _instance:
        return oracle.instance_norm(x, gamma, beta, -1, EPSILON).y
    if norm is _group:
        return oracle.group_norm(x, gamma, beta, 4, epsilon=EPSILON).y
    if norm is _rms:
        x = x.astype(np.float64)
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + EPSILON) * gamma + beta
    return oracle.layer_norm(x, gamma, beta, -1, EPSILON).y


@pytest.mark.parametrize("stacked", ["x", "gamma", "both"])
@pytest.mark.parametrize("norm", [_layer, _instance, _group, _rms], ids=lambda n: n.__name__)
def test_vectorized_map(rng: np.random.Generator, norm: Callable, stacked: str) -> None:
    x = normal(rng, *((N, *SHAPE) if stacked != "gamma" else SHAPE), mean=1.0)
    gamma = rng.uniform(0.5, 1.5, (N, 8) if stacked != "x" else 8).astype("f")
    beta = rng.normal(size=8).astype("f")

    def iteration(each: tuple) -> tf.Tensor:
        given = {"x": x, "gamma": gamma} | dict(zip(names, each, strict=True))
        return norm(tf.constant(given["x"]) if "x" not in names else given["x"],
                    tf.convert_to_tensor(given["gamma"]), tf.constant(beta))  # fmt: skip

    names = ("x", "gamma") if stacked == "both" else (stacked,)
    elements = tuple(tf.constant({"x": x, "gamma": gamma}[name]) for name in names)
    actual = tf.vectorized_map(iteration, elements, fallback_to_while_loop=False)
    for i in range(N):
        each_x = x[i] if "x" in names else x
        each_gamma = gamma[i] if "gamma" in names else gamma
        expected = _exact(norm, each_x, each_gamma, beta)
        np.testing.assert_allclose(actual[i], expected, 1e-5, 1e-5 * np.abs(expected).max())


def test_vectorized_map_of_a_compiled_function(rng: np.random.Generator) -> None:
    """Its norms are fused when it is traced, before TensorFlow vectorizes it."""
    x = normal(rng, N, 4, 8, mean=1.0)

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + EPSILON)

    actual = tf.vectorized_map(function, tf.constant(x), fallback_to_while_loop=False)
    assert nv_norms_rewriter.report().fused
    expected = oracle.layer_norm(x, np.ones(8), np.zeros(8), -1, EPSILON).y
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("norm", [_layer, _instance, _group, _rms], ids=lambda n: n.__name__)
def test_jacobian(rng: np.random.Generator, norm: Callable) -> None:
    """That of y by gamma, by the gradient ops: xhat on the diagonal; and that of y by x, stock."""
    x = tf.constant(normal(rng, 2, 3, 8, mean=1.0))
    gamma, beta = tf.constant(rng.uniform(0.5, 1.5, 8), tf.float32), tf.zeros(8)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, gamma])
        y = norm(x, gamma, beta)
    vectorized = tape.jacobian(y, [x, gamma], experimental_use_pfor=True)
    one_by_one = tape.jacobian(y, [x, gamma], experimental_use_pfor=False)
    for a, b in zip(vectorized, one_by_one, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5 * np.abs(b).max())
    xhat = _exact(norm, x.numpy(), np.ones(8), np.zeros(8))
    np.testing.assert_allclose(np.einsum("...cc->...c", vectorized[1]), xhat, 1e-4, 1e-5)


@pytest.mark.parametrize(
    "norm",
    [
        nv_norms.fused_instance_norm,
        lambda x: nv_norms.fused_group_norm(x, groups=-1),
        lambda x: nv_norms.fused_group_norm(x, groups=4),
        nv_norms.fused_layer_norm,
    ],
    ids=["instance", "one to a group", "4 groups", "layer"],
)
def test_vectorized_gradient_of_nothing(norm: Callable) -> None:
    """Without channels there are no groups of them to divide by."""

    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)[0]
        return tape.gradient(y, x)

    assert tf.vectorized_map(gradient, tf.zeros((N, 3, 4, 5, 0))).shape == (N, 3, 4, 5, 0)
