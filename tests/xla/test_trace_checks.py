"""tf.ensure_shape within a norm: nothing where the shape is known anyway, else a check to keep."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from traced import EPSILON, close, found

import nv_norms_rewriter
import oracle

pytestmark = pytest.mark.usefixtures("every_norm")

SHAPE = (6, 16)


def _centred(x: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.ensure_shape(x - mean, shape) * tf.math.rsqrt(variance + EPSILON)


def _root(x: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    root = tf.math.rsqrt(variance + EPSILON)
    return (x - mean) * tf.ensure_shape(root, [shape[0], 1])


def _y(x: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    root = tf.math.rsqrt(variance + EPSILON)
    return tf.ensure_shape((x - mean) * root, shape) * tf.range(1.0, SHAPE[1] + 1)


def _differentiated(function: Callable, x: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = function(given)
        loss = tf.reduce_sum(tf.square(y))
    return y, tape.gradient(loss, given)


@pytest.mark.parametrize("jit", [True, False], ids=["compiled", "tape"])
@pytest.mark.parametrize(
    ("known", "ensured"),
    [
        (SHAPE, [6, 16]),
        (SHAPE, [None, 16]),
        (SHAPE, [None, None]),
        ((None, 16), [None, 16]),
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", [_centred, _root, _y], ids=lambda f: f.__name__[1:])
def test_shape_that_is_known_anyway(rng, norm: Callable, known, ensured, jit: bool) -> None:
    x = rng.normal(1.0, 2.0, SHAPE).astype(np.float32)
    function = tf.function(
        lambda x: norm(x, ensured), input_signature=[tf.TensorSpec(known)], jit_compile=jit
    )
    y, dx = _differentiated(function, x)
    gamma = np.arange(1.0, SHAPE[1] + 1) if norm is _y else np.ones(SHAPE[1])
    exact = oracle.layer_norm(x, gamma, epsilon=EPSILON).y
    close(y, exact)
    given = oracle.backward(2.0 * exact, x, gamma, (1,), (1,), EPSILON)
    np.testing.assert_allclose(dx, given.dx, 1e-3, 1e-4 * max(1.0, np.abs(given.dx).max()))
    where = "xla" if jit else "tape"
    assert found("forward", where) == found("backward", where) == 1


@pytest.mark.parametrize("jit", [True, False], ids=["compiled", "tape"])
@pytest.mark.parametrize(
    ("known", "ensured", "norm"),
    [
        ((None, None), [None, 16], _centred),
        (None, [None, 16], _centred),
        ((None, 16), [6, 16], _centred),
        ((None, 16), [6, 16], _root),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_check_that_may_fail_must_not_fuse(rng, norm: Callable, known, ensured, jit: bool) -> None:
    function = tf.function(
        lambda x: norm(x, ensured), input_signature=[tf.TensorSpec(known)], jit_compile=jit
    )
    x = rng.normal(1.0, 2.0, SHAPE).astype(np.float32)
    y, _ = _differentiated(function, x)
    close(y, oracle.layer_norm(x, epsilon=EPSILON).y)
    assert not nv_norms_rewriter.report().fused
    other = rng.normal(size=(6, 8) if known != (None, 16) else (3, 16)).astype(np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError):
        _differentiated(function, other)
