"""Casts to fewer digits inside of what looks like a norm: before x is normalized a rounding is
magnified, and makes another formula of it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, placeholder, trace

from nv_norms_rewriter import rewrite

EPSILON = 1e-3
# float16 has every second whole number there.
CENTRE, DEVIATION = 3001.0, 0.3


class _Tensors:
    """What the formulas below are made of."""

    mean = staticmethod(lambda x: tf.reduce_mean(x, -1, keepdims=True))
    root = staticmethod(lambda v: tf.math.rsqrt(v + EPSILON))

    @staticmethod
    def rounded(x):
        return tf.cast(tf.cast(x, tf.float16), x.dtype)


class _Arrays:
    """The same in NumPy."""

    mean = staticmethod(lambda x: x.mean(-1, keepdims=True))
    root = staticmethod(lambda v: 1 / np.sqrt(v + EPSILON))

    @staticmethod
    def rounded(x):
        return x.astype(np.float16).astype(x.dtype)


def _variance(m, x):
    return m.mean((x - m.mean(x)) ** 2)


FORMULAS = {
    "mean": lambda m, x: (
        (x - m.mean(m.rounded(x))) * m.root(m.mean((x - m.mean(m.rounded(x))) ** 2))
    ),
    "mean of the numerator": lambda m, x: (x - m.mean(m.rounded(x))) * m.root(_variance(m, x)),
    "variance": lambda m, x: (x - m.mean(x)) * m.root(m.mean((m.rounded(x) - m.mean(x)) ** 2)),
    "numerator": lambda m, x: (m.rounded(x) - m.mean(x)) * m.root(_variance(m, x)),
    "mean, rounded": lambda m, x: (x - m.rounded(m.mean(x))) * m.root(_variance(m, x)),
    "rest added": lambda m, x: (x - m.mean(x) + (x - m.rounded(x))) * m.root(_variance(m, x)),
    "rest in the variance": lambda m, x: (
        (x - m.mean(x)) * m.root(_variance(m, x) + m.mean((x - m.rounded(x)) ** 2))
    ),
}


def _x(rng) -> np.ndarray:
    return rng.normal(CENTRE, DEVIATION, (3, 8))


@pytest.mark.parametrize("name", FORMULAS)
def test_rounded_before_it_is_normalized(rng, name: str) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8), tf.float64)
        tf.identity(FORMULAS[name](_Tensors, x), name="y")

    x = _x(rng)
    check(trace(make), {"x": x}, FORMULAS[name](_Arrays, x), 0, tolerance=1e-9)


@pytest.mark.parametrize("name", FORMULAS)
def test_gradient_of_what_is_rounded_before_it_is_normalized(name: str) -> None:
    def make() -> None:
        x, dy = placeholder("x", (None, 8), tf.float64), placeholder("dy", (None, 8), tf.float64)
        y = FORMULAS[name](_Tensors, x)
        tf.identity(tf.gradients(y, x, dy)[0], name="dx")
        tf.identity(y, name="y")

    assert not rewrite(trace(make), fetches=["y", "dx"])[1].fused


def test_rounded_once_normalized(rng) -> None:
    """As with a gamma of 16 bits."""

    def make() -> None:
        x = placeholder("x", (None, 8))
        y = (x - _Tensors.mean(x)) * _Tensors.root(_variance(_Tensors, x))
        tf.multiply(tf.cast(y, tf.float16), placeholder("gamma", (8,), tf.float16), name="y")

    x, gamma = rng.normal(size=(3, 8)), rng.normal(size=8).astype(np.float16)
    expected = (x - _Arrays.mean(x)) * _Arrays.root(_variance(_Arrays, x)) * gamma
    feeds = {"x": x.astype(np.float32), "gamma": gamma}
    check(trace(make), feeds, expected, 1, tolerance=4e-3)
