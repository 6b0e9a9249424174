"""Graphs that look like a normalization and are none, each one change away from a real one."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from ..line import BATCH, CHANNELS, STATIC, Input, Line

_X = (Input((3, 5, 8)),)
_TWO = (Input((3, 5, 8)), Input((3, 5, 8)))
_CUBE = (Input((4, 4, 4)),)
_IMAGE = (Input((2, 4, 4, 4)),)
_SHAPES = (("float32", STATIC, "infer"), ("float32", CHANNELS, "infer"))
_FROZEN = (("float32", STATIC, "frozen"), ("float32", BATCH, "frozen"))
_EPSILON = 1e-3


def _mean(x, axes=-1):
    return tf.reduce_mean(x, axes, keepdims=True)


def _norm(x, d=None, v=None, epsilon=_EPSILON, axes=-1):
    """A layer normalization of which single parts can be replaced."""
    d = x - _mean(x, axes) if d is None else d
    v = _mean(tf.square(x - _mean(x, axes)), axes) if v is None else v
    return d * tf.math.rsqrt(v + epsilon)


LINES: list[Line] = []


def miss(why, inputs=_X, allow=None, more=(), **fields):
    """Adds a line of the decorated function's name."""

    def add(make):
        name = make.__name__.strip("_")
        LINES.append(
            Line(
                f"not.{name}",
                make,
                {},
                inputs,
                allow=allow or {},
                why=why,
                more=more,
                slow_policies=("float32", "float64"),
                slow_modes=("infer", "train", "frozen"),
                **fields,
            )
        )
        return make

    return add


def _affine(builder, shape=(8,)):
    gamma, beta = builder.parameter("gamma", shape), builder.parameter("beta", shape)
    return lambda y: y * tf.cast(gamma, y.dtype) + tf.cast(beta, y.dtype)


# Other operations of the same make.


@miss("the statistics are parameters", _IMAGE, more=_FROZEN)
def batch_norm(b):
    layer = b.layer(keras.layers.BatchNormalization)
    return lambda x: layer(x, training=False)


@miss("the batch is normalized over", _IMAGE)
def batch_norm_training(b):
    layer = b.layer(keras.layers.BatchNormalization)
    return lambda x: layer(x, training=True)


@miss("FusedBatchNormV3 in inference", _IMAGE, more=_FROZEN)
def fused_batch_norm(b):
    gamma, beta = b.parameter("gamma", (4,)), b.parameter("beta", (4,))
    mean, variance = b.parameter("moving_mean", (4,)), b.parameter("moving_variance", (4,))

    def function(x):
        return tf.compat.v1.nn.fused_batch_norm(
            tf.cast(x, tf.float32), *(tf.cast(v, tf.float32) for v in (gamma, beta)),
            mean=tf.cast(mean, tf.float32), variance=tf.cast(variance, tf.float32),
            is_training=False,
        )[0]  # fmt: skip

    return function


@miss("FusedBatchNormV3 in training normalizes over the batch", _IMAGE)
def fused_batch_norm_training(b):
    gamma, beta = b.parameter("gamma", (4,)), b.parameter("beta", (4,))

    def function(x):
        return tf.compat.v1.nn.fused_batch_norm(
            tf.cast(x, tf.float32), tf.cast(gamma, tf.float32), tf.cast(beta, tf.float32)
        )[0]

    return function


@miss("a softmax has no root")
def softmax(b):
    return lambda x: tf.nn.softmax(x)


@miss("scaled dot products have a root of a size, not of data")
def attention(b):
    return lambda x: tf.nn.softmax(
        tf.matmul(x, x, transpose_b=True) * tf.math.rsqrt(tf.cast(tf.shape(x)[-1], x.dtype))
    )


@miss("a sum instead of a mean, a maximum instead of an epsilon")
def l2_normalize(b):
    return lambda x: tf.math.l2_normalize(x, -1)


@miss("a sum instead of a mean, a minimum on the root")
def unit_normalization(b):
    layer = b.layer(keras.layers.UnitNormalization)
    return lambda x: layer(x)


@miss("the square root of the sum", more=_SHAPES)
def euclidean(b):
    return lambda x: x / (tf.norm(x, axis=-1, keepdims=True) + _EPSILON)


@miss("the deviation is bounded from below", _IMAGE)
def per_image_standardization(b):
    return lambda x: tf.image.per_image_standardization(x)


@miss("the mean is cumulative along time")
def cumulative_group_norm(b):
    import keras_hub.src.models.gemma3n.gemma3n_audio_layers as layers

    layer = b.layer(
        layers.Gemma3nAudioCumulativeGroupNorm,
        (3, 5, 8),
        num_channels=8,
        feature_dims=(),
        eps=_EPSILON,
    )
    return lambda x: layer(x)


@miss("x is a kernel, a variable", _IMAGE, more=_FROZEN)
def weight_standardization(b):
    kernel, gain = b.parameter("kernel", (3, 3, 4, 6)), b.parameter("gain", (6,))

    def function(x):
        k = tf.cast(kernel, x.dtype)
        mean, variance = tf.nn.moments(k, [0, 1, 2], keepdims=True)
        k = (k - mean) * tf.math.rsqrt(variance + _EPSILON) * tf.cast(gain, x.dtype)
        return tf.nn.conv2d(x, k, 1, "SAME")

    return function


@miss("Adam: the root of a variable")
def adam(b):
    m, v = b.parameter("momentum", (8,)), b.parameter("velocity_variance", (8,))
    return lambda x: x - 0.1 * tf.cast(m / (tf.sqrt(tf.abs(v)) + 1e-7), x.dtype)


@miss("the gradient's global norm", _TWO)
def clip_by_global_norm(b):
    return lambda x, z: tf.clip_by_global_norm([x, z], 0.5)[0]


# The statistics are of something else.


@miss("the variance is taken over other axes than the mean", more=_SHAPES)
def variance_over_more_axes(b):
    affine = _affine(b)
    return lambda x: affine(_norm(x, v=_mean(tf.square(x - _mean(x)), [1, 2])))


@miss("the mean is taken over other axes than the variance", more=_SHAPES)
def mean_over_more_axes(b):
    return lambda x: _norm(x, d=x - _mean(x, [1, 2]), v=_mean(tf.square(x - _mean(x, [1, 2])), [2]))


@miss("mean and variance over different axes of equal size", _CUBE, more=_SHAPES)
def axes_of_equal_size(b):
    return lambda x: _norm(x, d=x - _mean(x, 1), v=_mean(tf.square(x - _mean(x, 1)), 2))


@miss("the mean of another tensor is taken off", _TWO)
def mean_of_other(b):
    return lambda x, z: _norm(x, d=x - _mean(z))


@miss("the variance is of another tensor", _TWO)
def variance_of_other(b):
    return lambda x, z: (x - _mean(x)) * tf.math.rsqrt(_mean(tf.square(z - _mean(z))) + _EPSILON)


@miss("another tensor is scaled by x's root mean square", _TWO)
def scales_other(b):
    return lambda x, z: z * tf.math.rsqrt(_mean(tf.square(x)) + 1e-6)


@miss("a covariance, not a variance", _TWO)
def covariance(b):
    return lambda x, z: (
        (x - _mean(x)) * tf.math.rsqrt(tf.abs(_mean((x - _mean(x)) * (z - _mean(z)))) + _EPSILON)
    )


@miss("statistics of x's first example for all examples")
def statistics_of_first(b):
    return lambda x: _norm(x, v=_mean(tf.square(x[:1] - _mean(x[:1]))))


@miss("the variance is averaged over the batch", more=_SHAPES)
def variance_averaged(b):
    return lambda x: _norm(x, v=tf.reduce_mean(_mean(tf.square(x - _mean(x))), 0, keepdims=True))


@miss("statistics of the step before")
def statistics_of_step_before(b):
    def function(x):
        old, new = x[:, :-1], x[:, 1:]
        return (new - _mean(old)) * tf.math.rsqrt(_mean(tf.square(old - _mean(old))) + _EPSILON)

    return function


@miss("the root belongs to the transposed tensor", _CUBE, more=_SHAPES)
def transposed(b):
    return lambda x: _norm(x, d=tf.transpose(x, [0, 2, 1]) - _mean(x))


@miss("statistics of relu(x)")
def statistics_of_relu(b):
    def function(x):
        p = tf.nn.relu(x)
        return (x - _mean(p)) * tf.math.rsqrt(_mean(tf.square(p - _mean(p))) + _EPSILON)

    return function


@miss("statistics of x without its fraction", (Input((3, 5, 8), spread=3.0),))
def statistics_of_truncated(b):
    def function(x):
        t = tf.cast(tf.cast(x, tf.int32), x.dtype)
        return (x - _mean(t)) * tf.math.rsqrt(_mean(tf.square(t - _mean(t))) + _EPSILON)

    return function


@miss("statistics of half of the channels")
def statistics_of_half(b):
    def function(x):
        h = x[..., :4]
        return (x - _mean(h)) * tf.math.rsqrt(_mean(tf.square(h - _mean(h))) + _EPSILON)

    return function


@miss("masked statistics", _TWO)
def masked(b):
    def function(x, z):
        mask = tf.cast(z > 0, x.dtype)
        count = tf.reduce_sum(mask, -1, keepdims=True) + 1
        m = tf.reduce_sum(x * mask, -1, keepdims=True) / count
        v = tf.reduce_sum(tf.square(x - m) * mask, -1, keepdims=True) / count
        return (x - m) * tf.math.rsqrt(v + _EPSILON)

    return function


@miss("a moving average of the variance")
def moving_variance(b):
    moving = b.parameter("moving_variance", (3, 5, 1))

    def function(x):
        v = _mean(tf.square(x - _mean(x)))
        return _norm(x, v=0.9 * tf.cast(moving, x.dtype) + 0.1 * v)

    return function


# The numbers are others.


@miss("N - 1 instead of N", more=_SHAPES)
def sample_variance(b):
    return lambda x: _norm(x, v=tf.reduce_sum(tf.square(x - _mean(x)), -1, keepdims=True) / 7.0)


@miss("N - 1 instead of N, from the shape", more=_SHAPES)
def sample_variance_of_shape(b):
    def function(x):
        size = tf.cast(tf.shape(x)[-1] - 1, x.dtype)
        return _norm(x, v=tf.reduce_sum(tf.square(x - _mean(x)), -1, keepdims=True) / size)

    return function


@miss("divided by the size of another axis", knowledge=(CHANNELS,), slow_knowledge=(CHANNELS,))
def size_of_other_axis(b):
    def function(x):
        size = tf.cast(tf.shape(x)[1], x.dtype)
        return _norm(x, v=tf.reduce_sum(tf.square(x - _mean(x)), -1, keepdims=True) / size)

    return function


@miss("a sum instead of a mean", more=_SHAPES)
def sum_of_squares(b):
    return lambda x: x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), -1, keepdims=True) + 1e-6)


@miss("twice the variance")
def twice_the_variance(b):
    return lambda x: _norm(x, v=2.0 * _mean(tf.square(x - _mean(x))))


@miss("half of the mean is taken off")
def half_the_mean(b):
    return lambda x: _norm(x, d=x - 0.5 * _mean(x))


@miss("the mean is added")
def mean_added(b):
    return lambda x: _norm(x, d=x + _mean(x))


@miss("x squared on top")
def numerator_squared(b):
    return lambda x: _norm(x, d=tf.square(x - _mean(x)))


@miss("the magnitude on top")
def numerator_magnitude(b):
    return lambda x: tf.abs(x) * tf.math.rsqrt(_mean(tf.square(x)) + 1e-6)


@miss("the mean magnitude instead of the mean square")
def mean_magnitude(b):
    return lambda x: x * tf.math.rsqrt(_mean(tf.abs(x)) + 1e-6)


@miss("fourth powers")
def fourth_power(b):
    return lambda x: x * tf.math.rsqrt(tf.sqrt(_mean(tf.square(tf.square(x)))) + 1e-6)


@miss("the largest square instead of the mean")
def largest(b):
    return lambda x: x * tf.math.rsqrt(tf.reduce_max(tf.square(x), -1, keepdims=True) + 1e-6)


@miss("not the root")
def no_root(b):
    return lambda x: (x - _mean(x)) / (_mean(tf.square(x - _mean(x))) + _EPSILON)


@miss("the fourth root")
def fourth_root(b):
    return lambda x: (x - _mean(x)) * tf.pow(_mean(tf.square(x - _mean(x))) + _EPSILON, -0.25)


@miss("times the root")
def times_root(b):
    return lambda x: (x - _mean(x)) * tf.sqrt(_mean(tf.square(x - _mean(x))) + _EPSILON)


@miss("the sign of the variance")
def minus_variance(b):
    return lambda x: _norm(x, v=-_mean(tf.square(x - _mean(x))), epsilon=100.0)


@miss("E[x^2] + E[x]^2")
def raw_moments_added(b):
    return lambda x: _norm(x, v=_mean(tf.square(x)) + tf.square(_mean(x)))


@miss("E[x^2] - E[x]")
def raw_moments_mean(b):
    return lambda x: _norm(x, v=_mean(tf.square(x)) - _mean(x), epsilon=10.0)


# The epsilon is another.


@miss("epsilon outside of the root")
def epsilon_outside(b):
    return lambda x: (x - _mean(x)) / (tf.sqrt(_mean(tf.square(x - _mean(x)))) + _EPSILON)


@miss("epsilon added to the inverse root")
def epsilon_after(b):
    return lambda x: (
        (x - _mean(x)) * (tf.math.rsqrt(_mean(tf.square(x - _mean(x))) + 1e-9) + _EPSILON)
    )


@miss("epsilon is data", _TWO)
def epsilon_of_data(b):
    return lambda x, z: _norm(x, epsilon=tf.abs(z[:, :, :1]))


@miss("epsilon is a variable")
def epsilon_variable(b):
    epsilon = b.parameter("offset_epsilon", ())
    return lambda x: _norm(x, epsilon=tf.cast(tf.abs(epsilon), x.dtype))


@miss("one epsilon per channel")
def epsilon_per_channel(b):
    values = np.linspace(0.001, 0.5, 8)
    return lambda x: _norm(x, epsilon=tf.constant(values, x.dtype))


@miss("one epsilon per position")
def epsilon_per_position(b):
    values = np.linspace(0.001, 0.5, 5).reshape(5, 1)
    return lambda x: _norm(x, epsilon=tf.constant(values, x.dtype))


@miss("a maximum instead of an epsilon", (Input((3, 5, 8), spread=5.0),))
def maximum_for_epsilon(b):
    def function(x):
        v = _mean(tf.square(x - _mean(x)))
        return (x - _mean(x)) * tf.math.rsqrt(tf.maximum(v, _EPSILON))

    return function


@miss("the inverse root is bounded")
def minimum_on_root(b):
    def function(x):
        v = _mean(tf.square(x - _mean(x)))
        return (x - _mean(x)) * tf.minimum(tf.math.rsqrt(v + 1e-12), 100.0)

    return function


@miss("small variances are left alone", (Input((3, 5, 8), spread=5.0),))
def only_large_variances(b):
    def function(x):
        v = _mean(tf.square(x - _mean(x)))
        return (x - _mean(x)) * tf.math.rsqrt(tf.where(v > 0.5, v + _EPSILON, tf.ones_like(v)))

    return function


# The parameters are none. The norm itself may be fused, the parameter stays outside.

_PLAIN = {"layer_norm": 1}
_PLAIN_RMS = {"rms_norm": 1}
_PLAIN_INSTANCE = {"instance_norm/layer_norm": 1}


@miss("gamma varies along the batch", allow=_PLAIN, more=_SHAPES)
def gamma_along_batch(b):
    gamma = b.parameter("gamma", (3, 1, 8))
    return lambda x: _norm(x) * tf.cast(gamma, x.dtype)


@miss("gamma varies along the batch only", allow=_PLAIN, more=_SHAPES)
def gamma_per_example(b):
    gamma = b.parameter("gamma", (3, 1, 1))
    return lambda x: _norm(x) * tf.cast(gamma, x.dtype)


@miss("beta varies along the batch", allow=_PLAIN)
def beta_along_batch(b):
    beta = b.parameter("beta", (3, 1, 8))
    return lambda x: _norm(x) + tf.cast(beta, x.dtype)


@miss("gamma is data", _TWO, allow=_PLAIN)
def gamma_of_data(b):
    return lambda x, z: _norm(x) * z + x


@miss("gamma belongs to another axis of equal size", _CUBE, allow=_PLAIN, more=_SHAPES)
def gamma_on_other_axis(b):
    gamma = b.parameter("gamma", (4, 1))
    return lambda x: _norm(x) * tf.cast(gamma, x.dtype)


@miss("beta belongs to another axis of equal size", _CUBE, allow=_PLAIN)
def beta_on_other_axis(b):
    gamma, beta = b.parameter("gamma", (4,)), b.parameter("beta", (4, 1))
    return lambda x: _norm(x) * tf.cast(gamma, x.dtype) + tf.cast(beta, x.dtype)


@miss("gamma varies along the batch of equal size", _CUBE, allow=_PLAIN_RMS)
def rms_gamma_along_batch(b):
    gamma = b.parameter("gamma", (4, 1, 1))
    return lambda x: x * tf.math.rsqrt(_mean(tf.square(x)) + 1e-6) * tf.cast(gamma, x.dtype)


@miss("an instance norm's gamma along the width", _IMAGE, allow=_PLAIN_INSTANCE)
def instance_gamma_on_width(b):
    gamma = b.parameter("gamma", (4, 1))
    return lambda x: _norm(x, axes=[1, 2]) * tf.cast(gamma, x.dtype)


@miss("one gamma for every group", _IMAGE, allow={"group_norm/layer_norm": 1})
def group_gamma_per_group(b):
    layer = b.layer(keras.layers.GroupNormalization, groups=2, scale=False, center=False)
    gamma = b.parameter("gamma", (2,))

    def function(x):
        y = tf.reshape(layer(x), [-1, 4, 4, 2, 2])
        return tf.reshape(y * tf.cast(gamma, x.dtype)[:, tf.newaxis], tf.shape(x))

    return function


@miss("beta is scaled by the deviation as well", allow=_PLAIN)
def beta_inside(b):
    beta = b.parameter("beta", (8,))
    return lambda x: _norm(x, d=x - _mean(x) + tf.cast(beta, x.dtype))


# Types.


@miss("complex numbers", allow={})
def complex_numbers(b):
    def function(x):
        c = tf.complex(tf.cast(x, tf.float32), tf.cast(x, tf.float32) * 0.5 + 1.0)
        return tf.math.real(_norm(c, epsilon=tf.constant(_EPSILON, tf.complex64)))

    return function


@miss("x before the cast are integers", (Input((3, 5, 8), below=9),), allow=_PLAIN)
def integers(b):
    def function(x):
        return _norm(tf.cast(x, b.dtype))

    return function


# What TensorFlow's remapper itself turns into something else on the CPU.


def _frozen_instance(mean_axes, variance_axes, shape):
    def make(b):
        gamma, beta = b.constant("gamma", shape), b.constant("beta", shape)

        def function(x):
            m = _mean(x, mean_axes)
            v = _mean(tf.math.squared_difference(x, m), variance_axes)
            w = tf.math.rsqrt(v + _EPSILON) * gamma
            return x * w + (beta - m * w)

        return function

    return make


_MISCOMPILED = {"slow_policies": ("float32",), "slow_modes": ("infer",), "stock_is_wrong": True}
LINES += [
    Line(
        "miscompiled.variance_axes",
        _frozen_instance([1, 2], [1, 2, 3], (4,)),
        {},
        _IMAGE,
        why="the variance is taken over other axes than the mean",
        more=(("float32", STATIC, "infer"),),
        **_MISCOMPILED,
    ),
    Line(
        "miscompiled.gamma_axis",
        _frozen_instance([2, 3], [2, 3], (4,)),
        {},
        _IMAGE,
        allow=_PLAIN_INSTANCE,
        why="gamma belongs to the last axis, not to the channels",
        more=(("float32", STATIC, "infer"),),
        **_MISCOMPILED,
    ),
]


def _two_axes_legacy(b):
    import tf_keras

    return b.layer(tf_keras.layers.LayerNormalization, axis=[-2, -1])


LINES.append(
    Line(
        "miscompiled.two_axes",
        _two_axes_legacy,
        {},
        (Input((2, 8, 8)),),
        allow=_PLAIN,
        why="oneDNN's layer norm takes a vector for gamma",
        needs="tf_keras",
        **_MISCOMPILED,
    )
)
