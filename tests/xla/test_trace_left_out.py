"""A norm that is left out keeps all that its own ops read, what goes on beside it among that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from traced import close, found

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _xla_rule

pytestmark = pytest.mark.usefixtures("every_norm")

EPSILON = 1e-3
SHAPE = (4, 6, 16)


def _mean(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, -1, keepdims=True)


def _moments(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    mean = _mean(x)
    return mean, _mean(tf.square(x - mean))


def _rstd(moment: tf.Tensor) -> tf.Tensor:
    return tf.math.rsqrt(moment + EPSILON)


def _layer_norm(x: tf.Tensor) -> tf.Tensor:
    mean, variance = _moments(x)
    return (x - mean) * _rstd(variance)


def _sum_of_terms(x: tf.Tensor, z: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
    mean, variance = _moments(x)
    scale = _rstd(variance) * g
    return x * scale + (z - mean * scale)


# y of x, z (of x's shape) and g; the same from xhat (or x * rstd of an RMS norm). The last op of
# each is there whether the norm is fused or not.
SPELLINGS: dict[str, tuple[Callable, Callable]] = {
    "offset": (
        lambda x, z, g: tf.nn.batch_normalization(x, *_moments(x), z, g, EPSILON),
        lambda xhat, rms, z, g: xhat * g + z,
    ),
    "factor": (
        lambda x, z, g: (x - _mean(x)) * (_rstd(_moments(x)[1]) * z),
        lambda xhat, rms, z, g: xhat * z,
    ),
    "rms": (
        lambda x, z, g: x * (_rstd(_mean(tf.square(x))) * z),
        lambda xhat, rms, z, g: rms * z,
    ),
    "rms, gamma": (
        lambda x, z, g: x * (_rstd(_mean(tf.square(x))) * tf.sigmoid(z)) * g,
        lambda xhat, rms, z, g: rms / (1 + np.exp(-z)) * g,
    ),
    "terms": (_sum_of_terms, lambda xhat, rms, z, g: xhat * g + z),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_norm_left_to_xla_beside_one_that_is_fused(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, spelling: str, gradient: bool
) -> None:
    write, formula = SPELLINGS[spelling]
    monkeypatch.setattr(_xla_rule, "why_left", lambda norm: "" if norm.shape[0] == 2 else "no")
    nv_norms_rewriter.configure(xla="auto")
    x, z = (tf.constant(rng.normal(1, 1, SHAPE), tf.float32) for _ in range(2))
    g = tf.constant(rng.uniform(0.5, 2, SHAPE[-1]), tf.float32)
    other = tf.constant(rng.normal(1, 1, (2, SHAPE[-1])), tf.float32)

    @tf.function(jit_compile=True, autograph=False)
    def step(other: tf.Tensor, *given: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([other, *given])
            y = write(*given)
            loss = tf.reduce_sum(_layer_norm(other) * other)
            loss += tf.reduce_sum(y * given[1]) if gradient else 0.0
        return [y, *tape.gradient(loss, [other, given[1]] if gradient else [other])]

    y, _, *dz = step(other, x, z, g)
    exact = [a.numpy().astype(np.float64) for a in (x, z, g)]
    xhat = oracle.layer_norm(exact[0], epsilon=EPSILON).y
    rms = exact[0] / np.sqrt((exact[0] ** 2).mean(-1, keepdims=True) + EPSILON)
    close(y, formula(xhat, rms, *exact[1:]))
    if gradient:  # of sum(y z): y, and z times the derivative of y, here by differences
        step_size = 1e-6
        more, less = (formula(xhat, rms, exact[1] + s, exact[2]) for s in (step_size, -step_size))
        close(dz[0], formula(xhat, rms, *exact[1:]) + exact[1] * (more - less) / (2 * step_size))
    assert found() == 1
    left = [r for r in nv_norms_rewriter.report().refused if r.reason == "left_to_xla"]
    assert left


def test_a_norm_with_a_stopped_gradient_beside_one_that_is_fused(rng: np.random.Generator) -> None:
    x, z = (tf.constant(rng.normal(1, 1, SHAPE), tf.float32) for _ in range(2))
    g = tf.constant(rng.uniform(0.5, 2, SHAPE[-1]), tf.float32)

    @tf.function(jit_compile=True, autograph=False)
    def both(x: tf.Tensor, z: tf.Tensor, g: tf.Tensor) -> list[tf.Tensor]:
        mean, variance = _moments(x)
        stopped = tf.stop_gradient(variance)
        y = tf.nn.batch_normalization(x, mean, stopped, z, g, EPSILON)
        return [y, _layer_norm(x * x)]

    y, other = both(x, z, g)
    exact = [a.numpy().astype(np.float64) for a in (x, z, g)]
    close(y, oracle.layer_norm(exact[0], epsilon=EPSILON).y * exact[2] + exact[1])
    close(other, oracle.layer_norm(exact[0] ** 2, epsilon=EPSILON).y)
    assert found() == 1
    reasons = [record.reason for record in nv_norms_rewriter.report().refused]
    assert reasons == ["stops_a_gradient"]


@pytest.mark.parametrize("around", ["cond", "while"])
def test_a_stopped_gradient_behind_a_norm_that_was_fused_before(
    rng: np.random.Generator, around: str
) -> None:
    """A second tape has the body's gradient made again, and the body: of the edited one."""
    x, w = (tf.constant(rng.normal(1, 1, SHAPE), tf.float32) for _ in range(2))

    def two_norms(x: tf.Tensor) -> tf.Tensor:
        y = _layer_norm(x)
        mean, variance = _moments(y)
        return (y - mean) * _rstd(tf.stop_gradient(variance))

    def net(x: tf.Tensor) -> tf.Tensor:
        if around == "cond":
            return tf.cond(tf.reduce_sum(x) > -1e9, lambda: two_norms(x), lambda: x)
        return tf.while_loop(
            lambda i, x: i < 1, lambda i, x: (i + 1, two_norms(x)), [0, x], maximum_iterations=1
        )[1]

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(net(x) * w)
            return tape.gradient(loss, x)

    exact_x, exact_w = (a.numpy().astype(np.float64) for a in (x, w))
    y = oracle.layer_norm(exact_x, epsilon=EPSILON).y
    rstd = 1 / np.sqrt(np.var(y, -1, keepdims=True) + EPSILON)
    dy = (exact_w - exact_w.mean(-1, keepdims=True)) * rstd
    last = (len(SHAPE) - 1,)
    close(step(x), oracle.backward(dy, exact_x, None, last, last, EPSILON).dx)
    assert found() >= 1
    assert "stops_a_gradient" in {r.reason for r in nv_norms_rewriter.report().refused}


def test_what_no_output_needs_is_not_reported(rng: np.random.Generator) -> None:
    x = tf.constant(rng.normal(size=(3, 4, 8)).astype(np.float32))

    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        _layer_norm(x + 1.0)
        return tf.vectorized_map(_layer_norm, x)  # beside the norm of one element, which stays

    close(function(x), oracle.layer_norm(x.numpy(), epsilon=EPSILON).y)
    (record,) = nv_norms_rewriter.report()
    assert record.fused and not record.outputs[0].startswith("loop_body/")
