"""Near misses by a number, an epsilon, a parameter or a type; TensorFlow's own mistakes."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from ..line import CHANNELS, STATIC, Input, Line
from .near import CUBE, EPSILON, IMAGE, SHAPES, TWO, affine, collector, mean_of, norm

LINES: list[Line] = []
miss = collector(LINES)

# The numbers are others.


@miss("N - 1 instead of N", more=SHAPES)
def sample_variance(b):
    return lambda x: norm(x, v=tf.reduce_sum(tf.square(x - mean_of(x)), -1, keepdims=True) / 7.0)


@miss("N - 1 instead of N, from the shape", more=SHAPES)
def sample_variance_of_shape(b):
    def function(x):
        size = tf.cast(tf.shape(x)[-1] - 1, x.dtype)
        return norm(x, v=tf.reduce_sum(tf.square(x - mean_of(x)), -1, keepdims=True) / size)

    return function


@miss("divided by the size of another axis", knowledge=(CHANNELS,), slow_knowledge=(CHANNELS,))
def size_of_other_axis(b):
    def function(x):
        size = tf.cast(tf.shape(x)[1], x.dtype)
        return norm(x, v=tf.reduce_sum(tf.square(x - mean_of(x)), -1, keepdims=True) / size)

    return function


@miss("a sum instead of a mean", more=SHAPES)
def sum_of_squares(b):
    return lambda x: x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), -1, keepdims=True) + 1e-6)


@miss("twice the variance")
def twice_the_variance(b):
    return lambda x: norm(x, v=2.0 * mean_of(tf.square(x - mean_of(x))))


@miss("half of the mean is taken off")
def half_the_mean(b):
    return lambda x: norm(x, d=x - 0.5 * mean_of(x))


@miss("the mean is added")
def mean_added(b):
    return lambda x: norm(x, d=x + mean_of(x))


@miss("x squared on top", slow_modes=("infer", "frozen"))  # its gradient holds xhat
def numerator_squared(b):
    return lambda x: norm(x, d=tf.square(x - mean_of(x)))


@miss("the magnitude on top")
def numerator_magnitude(b):
    return lambda x: tf.abs(x) * tf.math.rsqrt(mean_of(tf.square(x)) + 1e-6)


@miss("the mean magnitude instead of the mean square")
def mean_magnitude(b):
    return lambda x: x * tf.math.rsqrt(mean_of(tf.abs(x)) + 1e-6)


@miss("fourth powers")
def fourth_power(b):
    return lambda x: x * tf.math.rsqrt(tf.sqrt(mean_of(tf.square(tf.square(x)))) + 1e-6)


@miss("the largest square instead of the mean")
def largest(b):
    return lambda x: x * tf.math.rsqrt(tf.reduce_max(tf.square(x), -1, keepdims=True) + 1e-6)


@miss("not the root")
def no_root(b):
    return lambda x: (x - mean_of(x)) / (mean_of(tf.square(x - mean_of(x))) + EPSILON)


@miss("the fourth root")
def fourth_root(b):
    return lambda x: (x - mean_of(x)) * tf.pow(mean_of(tf.square(x - mean_of(x))) + EPSILON, -0.25)


@miss("times the root")
def times_root(b):
    return lambda x: (x - mean_of(x)) * tf.sqrt(mean_of(tf.square(x - mean_of(x))) + EPSILON)


@miss("the sign of the variance")
def minus_variance(b):
    return lambda x: norm(x, v=-mean_of(tf.square(x - mean_of(x))), epsilon=100.0)


@miss("E[x^2] + E[x]^2")
def raw_moments_added(b):
    return lambda x: norm(x, v=mean_of(tf.square(x)) + tf.square(mean_of(x)))


@miss("E[x^2] - E[x]")
def raw_moments_mean(b):
    return lambda x: norm(x, v=mean_of(tf.square(x)) - mean_of(x), epsilon=10.0)


# The epsilon is another.


@miss("epsilon outside of the root")
def epsilon_outside(b):
    return lambda x: (x - mean_of(x)) / (tf.sqrt(mean_of(tf.square(x - mean_of(x)))) + EPSILON)


@miss("epsilon added to the inverse root")
def epsilon_after(b):
    return lambda x: (
        (x - mean_of(x)) * (tf.math.rsqrt(mean_of(tf.square(x - mean_of(x))) + 1e-9) + EPSILON)
    )


@miss("epsilon is data", TWO)
def epsilon_of_data(b):
    return lambda x, z: norm(x, epsilon=tf.abs(z[:, :, :1]))


@miss("epsilon is a variable", slow_modes=("infer", "train"))
def epsilon_variable(b):
    epsilon = b.parameter("offset_epsilon", ())
    return lambda x: norm(x, epsilon=tf.cast(tf.abs(epsilon), x.dtype))


@miss("one epsilon per channel")
def epsilon_per_channel(b):
    values = np.linspace(0.001, 0.5, 8)
    return lambda x: norm(x, epsilon=tf.constant(values, x.dtype))


@miss("one epsilon per position")
def epsilon_per_position(b):
    values = np.linspace(0.001, 0.5, 5).reshape(5, 1)
    return lambda x: norm(x, epsilon=tf.constant(values, x.dtype))


@miss("a maximum instead of an epsilon", (Input((3, 5, 8), spread=5.0),))
def maximum_for_epsilon(b):
    def function(x):
        v = mean_of(tf.square(x - mean_of(x)))
        return (x - mean_of(x)) * tf.math.rsqrt(tf.maximum(v, EPSILON))

    return function


@miss("the inverse root is bounded")
def minimum_on_root(b):
    def function(x):
        v = mean_of(tf.square(x - mean_of(x)))
        return (x - mean_of(x)) * tf.minimum(tf.math.rsqrt(v + 1e-12), 100.0)

    return function


@miss("small variances are left alone", (Input((3, 5, 8), spread=5.0),))
def only_large_variances(b):
    def function(x):
        v = mean_of(tf.square(x - mean_of(x)))
        return (x - mean_of(x)) * tf.math.rsqrt(tf.where(v > 0.5, v + EPSILON, tf.ones_like(v)))

    return function


# The parameters are none. The norm itself may be fused, the parameter stays outside.

_PLAIN = ("layer_norm",)
_PLAIN_RMS = ("rms_norm",)
_PLAIN_INSTANCE = ("instance_norm", "layer_norm")


@miss("gamma varies along the batch", allow=_PLAIN, more=SHAPES)
def gamma_along_batch(b):
    gamma = b.parameter("gamma", (3, 1, 8))
    return lambda x: norm(x) * tf.cast(gamma, x.dtype)


@miss("gamma varies along the batch only", allow=_PLAIN, more=SHAPES)
def gamma_per_example(b):
    gamma = b.parameter("gamma", (3, 1, 1))
    return lambda x: norm(x) * tf.cast(gamma, x.dtype)


@miss("beta varies along the batch", allow=_PLAIN)
def beta_along_batch(b):
    beta = b.parameter("beta", (3, 1, 8))
    return lambda x: norm(x) + tf.cast(beta, x.dtype)


@miss("gamma is data", TWO, allow=_PLAIN)
def gamma_of_data(b):
    return lambda x, z: norm(x) * z + x


@miss("gamma on another axis of equal size", CUBE, allow=_PLAIN_INSTANCE, more=SHAPES)
def gamma_on_other_axis(b):
    gamma = b.parameter("gamma", (4, 1))
    return lambda x: norm(x) * tf.cast(gamma, x.dtype)


@miss("beta on another axis of equal size", CUBE, allow=_PLAIN_INSTANCE)
def beta_on_other_axis(b):
    gamma, beta = b.parameter("gamma", (4,)), b.parameter("beta", (4, 1))
    return lambda x: norm(x) * tf.cast(gamma, x.dtype) + tf.cast(beta, x.dtype)


@miss("gamma varies along the batch of equal size", CUBE, allow=_PLAIN_RMS)
def rms_gamma_along_batch(b):
    gamma = b.parameter("gamma", (4, 1, 1))
    return lambda x: x * tf.math.rsqrt(mean_of(tf.square(x)) + 1e-6) * tf.cast(gamma, x.dtype)


@miss("an instance norm's gamma along the width", IMAGE, allow=_PLAIN_INSTANCE)
def instance_gamma_on_width(b):
    gamma = b.parameter("gamma", (4, 1))
    return lambda x: norm(x, axes=[1, 2]) * tf.cast(gamma, x.dtype)


@miss("one gamma for every group", IMAGE, allow=("group_norm", "layer_norm"))
def group_gamma_per_group(b):
    layer = b.layer(keras.layers.GroupNormalization, groups=2, scale=False, center=False)
    gamma = b.parameter("gamma", (2,))

    def function(x):
        y = tf.reshape(layer(x), [-1, 4, 4, 2, 2])
        return tf.reshape(y * tf.cast(gamma, x.dtype)[:, tf.newaxis], tf.shape(x))

    return function


@miss("the mean stays in an instance norm", CUBE, allow=_PLAIN_INSTANCE, more=SHAPES)
def instance_not_centered(b):
    gamma = b.parameter("gamma", (4, 1))
    return lambda x: norm(x, d=x) * tf.cast(gamma, x.dtype)


@miss("the mean stays in an instance norm", IMAGE, allow=_PLAIN_INSTANCE, more=SHAPES)
def instance_not_centered_last(b):
    scaled = affine(b, (4,))
    return lambda x: scaled(norm(x, d=x, axes=[1, 2]))


@miss("the mean stays in a group norm", IMAGE, allow=("group_norm", "layer_norm"))
def group_not_centered(b):
    scaled = affine(b, (4,))
    return lambda x: scaled(norm(x, d=x, axes=[1, 2, 3]))


@miss("an instance norm of mean squares", IMAGE, allow=("rms_norm",))
def instance_of_mean_squares(b):
    scaled = affine(b, (4,))
    return lambda x: scaled(x * tf.math.rsqrt(mean_of(tf.square(x), [1, 2]) + EPSILON))


@miss("a group norm of mean squares", IMAGE, allow=("rms_norm",))
def group_of_mean_squares(b):
    scaled = affine(b, (4,))
    return lambda x: scaled(x * tf.math.rsqrt(mean_of(tf.square(x), [1, 2, 3]) + EPSILON))


@miss("beta is scaled by the deviation as well", allow=_PLAIN)
def beta_inside(b):
    beta = b.parameter("beta", (8,))
    return lambda x: norm(x, d=x - mean_of(x) + tf.cast(beta, x.dtype))


# Types.


@miss("complex numbers")
def complex_numbers(b):
    def function(x):
        c = tf.complex(tf.cast(x, tf.float32), tf.cast(x, tf.float32) * 0.5 + 1.0)
        return tf.math.real(norm(c, epsilon=tf.constant(EPSILON, tf.complex64)))

    return function


@miss("x before the cast are integers", (Input((3, 5, 8), below=9),), allow=_PLAIN)
def integers(b):
    def function(x):
        return norm(tf.cast(x, b.dtype))

    return function


# What TensorFlow's remapper itself turns into something else on the CPU.


def _frozen_instance(mean_axes, variance_axes, shape):
    def make(b):
        gamma, beta = b.value("gamma", shape), b.value("beta", shape)

        def function(x):
            m = mean_of(x, mean_axes)
            v = mean_of(tf.math.squared_difference(x, m), variance_axes)
            w = tf.math.rsqrt(v + EPSILON) * tf.constant(gamma, x.dtype)
            return x * w + (tf.constant(beta, x.dtype) - m * w)

        return function

    return make


_MISCOMPILED = {
    "slow_policies": ("float32",),
    "slow_modes": ("infer",),
    "stock_is_wrong": "float32",
}
LINES += [
    Line(
        "miscompiled.variance_axes",
        _frozen_instance([1, 2], [1, 2, 3], (4,)),
        {},
        IMAGE,
        why="the variance is taken over other axes than the mean",
        more=(("float32", STATIC, "infer"),),
        **_MISCOMPILED,
    ),
    Line(
        "miscompiled.gamma_axis",
        _frozen_instance([2, 3], [2, 3], (4,)),
        {},
        IMAGE,
        allow=_PLAIN_INSTANCE,
        why="gamma belongs to the last axis, not to the channels",
        more=(("float32", STATIC, "infer"),),
        **_MISCOMPILED,
    ),
]
