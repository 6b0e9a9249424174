"""What the tables of near misses share: a norm with replaceable parts, and the decorator."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from ..line import BATCH, CHANNELS, STATIC, Input, Line

X = (Input((3, 5, 8)),)
TWO = (Input((3, 5, 8)), Input((3, 5, 8)))
CUBE = (Input((4, 4, 4)),)
IMAGE = (Input((2, 4, 4, 4)),)
SHAPES = (("float32", STATIC, "infer"), ("float32", CHANNELS, "infer"))
FROZEN = (("float32", STATIC, "frozen"), ("float32", BATCH, "frozen"))
EPSILON = 1e-3


def mean_of(x, axes=-1):
    return tf.reduce_mean(x, axes, keepdims=True)


def norm(x, d=None, v=None, epsilon=EPSILON, axes=-1):
    """A layer normalization of which single parts can be replaced."""
    d = x - mean_of(x, axes) if d is None else d
    v = mean_of(tf.square(x - mean_of(x, axes)), axes) if v is None else v
    return d * tf.math.rsqrt(v + epsilon)


def affine(builder, shape=(8,)):
    gamma, beta = builder.parameter("gamma", shape), builder.parameter("beta", shape)
    return lambda y: y * tf.cast(gamma, y.dtype) + tf.cast(beta, y.dtype)


def collector(lines: list[Line]) -> Callable:
    """A decorator that adds a line named after the function; it takes what is wrong with it."""

    def miss(why, inputs=X, allow=(), more=(), **fields):
        fields = {
            "slow_policies": ("float32", "float64"),
            "slow_modes": ("infer", "train", "frozen"),
        } | fields

        def add(make):
            name = f"not.{make.__name__}"
            lines.append(Line(name, make, {}, inputs, allow=allow, why=why, more=more, **fields))
            return make

        return add

    return miss
