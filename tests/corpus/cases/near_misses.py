"""Graphs that look like a normalization and are none: other operations, other tensors."""

from __future__ import annotations

import keras
import tensorflow as tf

from ..line import STATIC, Input, Line
from .near import CUBE, EPSILON, FROZEN, IMAGE, SHAPES, TWO, affine, collector, mean_of, norm

LINES: list[Line] = []
miss = collector(LINES)

# x - mean(x) is a tensor like any other: its RMS norm may be fused, over the axes of its squares.
RMS_OF_CENTERED = ("rms_norm",)

# Other operations of the same make.


@miss("the statistics are parameters", IMAGE, more=FROZEN)
def batch_norm(b):
    layer = b.layer(keras.layers.BatchNormalization)
    return lambda x: layer(x, training=False)


@miss("the batch is normalized over", IMAGE, slow_modes=("infer", "train"))
def batch_norm_training(b):
    layer = b.layer(keras.layers.BatchNormalization)
    return lambda x: layer(x, training=True)


@miss("FusedBatchNormV3 in inference", IMAGE, more=FROZEN)
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


@miss("FusedBatchNormV3 in training normalizes over the batch", IMAGE)
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


@miss("the square root of the sum", more=SHAPES)
def euclidean(b):
    return lambda x: x / (tf.norm(x, axis=-1, keepdims=True) + EPSILON)


@miss("the deviation is bounded from below", IMAGE)
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
        eps=EPSILON,
    )
    return lambda x: layer(x)


@miss("x is a kernel, a variable", IMAGE, more=(*FROZEN, ("float32", STATIC, "train")))
def weight_standardization(b):
    kernel, gain = b.parameter("kernel", (3, 3, 4, 6)), b.parameter("gain", (6,))

    def function(x):
        k = tf.cast(kernel, x.dtype)
        mean, variance = tf.nn.moments(k, [0, 1, 2], keepdims=True)
        k = (k - mean) * tf.math.rsqrt(variance + EPSILON) * tf.cast(gain, x.dtype)
        return tf.nn.conv2d(x, k, 1, "SAME")

    return function


@miss("Adam: the root of a variable")
def adam(b):
    m, v = b.parameter("momentum", (8,)), b.parameter("velocity_variance", (8,))
    return lambda x: x - 0.1 * tf.cast(m / (tf.sqrt(tf.abs(v)) + 1e-7), x.dtype)


@miss("the gradient's global norm", TWO)
def clip_by_global_norm(b):
    return lambda x, z: tf.clip_by_global_norm([x, z], 0.5)[0]


# The statistics are of something else.


@miss("the variance is taken over other axes than the mean", allow=RMS_OF_CENTERED, more=SHAPES)
def variance_over_more_axes(b):
    scale = affine(b)
    return lambda x: scale(norm(x, v=mean_of(tf.square(x - mean_of(x)), [1, 2])))


@miss("the mean is taken over other axes than the variance", allow=RMS_OF_CENTERED, more=SHAPES)
def mean_over_more_axes(b):
    return lambda x: norm(
        x, d=x - mean_of(x, [1, 2]), v=mean_of(tf.square(x - mean_of(x, [1, 2])), [2])
    )


@miss("mean and variance over different axes", CUBE, allow=RMS_OF_CENTERED, more=SHAPES)
def axes_of_equal_size(b):
    return lambda x: norm(x, d=x - mean_of(x, 1), v=mean_of(tf.square(x - mean_of(x, 1)), 2))


@miss("the mean of another tensor is taken off", TWO)
def mean_of_other(b):
    return lambda x, z: norm(x, d=x - mean_of(z))


@miss("the variance is of another tensor", TWO)
def variance_of_other(b):
    return lambda x, z: (
        (x - mean_of(x)) * tf.math.rsqrt(mean_of(tf.square(z - mean_of(z))) + EPSILON)
    )


@miss("another tensor is scaled by x's root mean square", TWO)
def scales_other(b):
    return lambda x, z: z * tf.math.rsqrt(mean_of(tf.square(x)) + 1e-6)


@miss("a covariance, not a variance", TWO)
def covariance(b):
    return lambda x, z: (
        (x - mean_of(x))
        * tf.math.rsqrt(tf.abs(mean_of((x - mean_of(x)) * (z - mean_of(z)))) + EPSILON)
    )


@miss("statistics of x's first example for all examples")
def statistics_of_first(b):
    return lambda x: norm(x, v=mean_of(tf.square(x[:1] - mean_of(x[:1]))))


@miss("the variance is averaged over the batch", more=SHAPES)
def variance_averaged(b):
    return lambda x: norm(x, v=tf.reduce_mean(mean_of(tf.square(x - mean_of(x))), 0, keepdims=True))


@miss("statistics of the step before")
def statistics_of_step_before(b):
    def function(x):
        old, new = x[:, :-1], x[:, 1:]
        return (new - mean_of(old)) * tf.math.rsqrt(
            mean_of(tf.square(old - mean_of(old))) + EPSILON
        )

    return function


@miss("the root belongs to the transposed tensor", CUBE, more=SHAPES)
def transposed(b):
    return lambda x: norm(x, d=tf.transpose(x, [0, 2, 1]) - mean_of(x))


@miss("statistics of relu(x)")
def statistics_of_relu(b):
    def function(x):
        p = tf.nn.relu(x)
        return (x - mean_of(p)) * tf.math.rsqrt(mean_of(tf.square(p - mean_of(p))) + EPSILON)

    return function


@miss("statistics of x without its fraction", (Input((3, 5, 8), spread=3.0),))
def statistics_of_truncated(b):
    def function(x):
        t = tf.cast(tf.cast(x, tf.int32), x.dtype)
        return (x - mean_of(t)) * tf.math.rsqrt(mean_of(tf.square(t - mean_of(t))) + EPSILON)

    return function


@miss("statistics of half of the channels")
def statistics_of_half(b):
    def function(x):
        h = x[..., :4]
        return (x - mean_of(h)) * tf.math.rsqrt(mean_of(tf.square(h - mean_of(h))) + EPSILON)

    return function


@miss("masked statistics", TWO)
def masked(b):
    def function(x, z):
        mask = tf.cast(z > 0, x.dtype)
        count = tf.reduce_sum(mask, -1, keepdims=True) + 1
        m = tf.reduce_sum(x * mask, -1, keepdims=True) / count
        v = tf.reduce_sum(tf.square(x - m) * mask, -1, keepdims=True) / count
        return (x - m) * tf.math.rsqrt(v + EPSILON)

    return function


@miss("a moving average of the variance")
def moving_variance(b):
    moving = b.parameter("moving_variance", (3, 5, 1))

    def function(x):
        v = mean_of(tf.square(x - mean_of(x)))
        return norm(x, v=0.9 * tf.cast(moving, x.dtype) + 0.1 * v)

    return function
