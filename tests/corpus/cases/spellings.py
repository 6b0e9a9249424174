"""Spellings of their own: other views of x, and forms that nobody writes but that are right."""

from __future__ import annotations

import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from ..line import BATCH, CHANNELS, STATIC, Input, Line

_HALF = (("mixed_float16", STATIC, "infer"), ("mixed_bfloat16", CHANNELS, "infer"))
_X = (Input((3, 5, 8)),)
# Stock TensorFlow makes an op of it that has no double.
_NO_DOUBLE = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")


def _mean(x, axes=-1):
    return tf.reduce_mean(x, axes, keepdims=True)


def _affine(builder, size=8):
    gamma, beta = builder.parameter("gamma", (size,)), builder.parameter("beta", (size,))
    return lambda x: (tf.cast(gamma, x.dtype), tf.cast(beta, x.dtype))


def _group_by_hand(order):
    """Group normalization with its reshapes written out; `order` is the layout."""

    def make(builder):
        gamma, beta = builder.parameter("gamma", (8,)), builder.parameter("beta", (8,))

        def normalize(x):
            n = tf.shape(x)[0]
            if order == "NHWC":
                grouped, axes = tf.reshape(x, [n, 3, 5, 2, 4]), [1, 2, 4]
                g, b = gamma, beta
            else:
                grouped, axes = tf.reshape(x, [n, 2, 4, 3, 5]), [2, 3, 4]
                g, b = tf.reshape(gamma, [8, 1, 1]), tf.reshape(beta, [8, 1, 1])
            d = grouped - _mean(grouped, axes)
            v = _mean(tf.square(d), axes)
            xhat = tf.reshape(d * tf.math.rsqrt(v + 1e-5), tf.shape(x))
            return xhat * tf.cast(g, x.dtype) + tf.cast(b, x.dtype)

        return normalize

    return make


def _two_views(builder):
    """The row as [B, T, H, D / H] before and as [B, T, D] after the reduction."""
    gamma = builder.parameter("gamma", (8,))

    def function(x):
        heads = tf.reshape(x, [-1, 5, 2, 4])
        d = heads - tf.reduce_mean(heads, [2, 3], keepdims=True)
        r = tf.math.rsqrt(tf.reduce_mean(d * d, [2, 3], keepdims=True) + 1e-5)
        return tf.reshape(d * r, [-1, 5, 8]) * tf.cast(gamma, x.dtype)

    return function


def _heads(builder):
    """Each head has a gamma and a beta of its own, and tf.nn.batch_normalization puts them in."""
    gamma, beta = builder.parameter("gamma", (2, 4)), builder.parameter("beta", (2, 4))

    def function(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        g, b = tf.cast(gamma, x.dtype), tf.cast(beta, x.dtype)
        return tf.nn.batch_normalization(x, mean, variance, b, g, 1e-3)

    return function


def _adaptive(how, axes=(1, 2), groups=None):
    """Each sample has a scale and a shift of its own, which come out of a style."""

    def make(builder):
        gain = builder.parameter("gain", (16,))

        def function(x, style):
            scale, shift = tf.split((style * tf.cast(gain, x.dtype))[:, None, None, :], 2, axis=-1)
            if groups:
                split = [-1, 3, 5, groups, 8 // groups]
                x, shape = tf.reshape(x, split), tf.shape(x)
                scale, shift = (tf.reshape(v, [-1, 1, 1, *split[3:]]) for v in (scale, shift))
            mean, variance = tf.nn.moments(x, list(axes), keepdims=True)
            if how == "batch_normalization":
                y = tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-3)
            else:
                y = (x - mean) * tf.math.rsqrt(variance + 1e-3) * scale + shift
            return tf.reshape(y, shape) if groups else y

        return function

    return make


def _transposed(builder):
    """Channels are moved to the end and back."""
    gamma, beta = builder.parameter("gamma", (6,)), builder.parameter("beta", (6,))

    def function(x):
        t = tf.transpose(x, [0, 2, 3, 1])
        d = t - _mean(t)
        v = _mean(tf.square(d))
        y = d * tf.math.rsqrt(v + 1e-6) * tf.cast(gamma, x.dtype) + tf.cast(beta, x.dtype)
        return tf.transpose(y, [0, 3, 1, 2])

    return function


def _squeezed_means(builder):
    """No keepdims: the statistics get their axis back by expand_dims."""
    gamma, beta = builder.parameter("gamma", (8,)), builder.parameter("beta", (8,))

    def function(x):
        d = x - tf.expand_dims(tf.reduce_mean(x, -1), -1)
        r = tf.math.rsqrt(tf.reduce_mean(d * d, -1) + 1e-5)
        return d * r[..., tf.newaxis] * tf.cast(gamma, x.dtype) + tf.cast(beta, x.dtype)

    return function


def _pieces_of_l2(builder):
    """A root mean square out of tf.math.l2_normalize's pieces and a real mean."""
    gamma = builder.parameter("gamma", (8,))

    def function(x):
        total = tf.reduce_sum(tf.square(x), -1, keepdims=True)
        size = tf.cast(tf.shape(x)[-1], x.dtype)
        inverse = tf.math.rsqrt(total + 1e-6 * size)
        return x * inverse * tf.sqrt(size) * tf.cast(gamma, x.dtype)

    return function


def _x_times_centered(builder):
    """var(x) = E[x (x - E[x])]."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        d = x - _mean(x)
        return d * tf.math.rsqrt(_mean(x * d) + 1e-5) * g + b

    return function


def _distributed(builder):
    """Everything multiplied out."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        m = _mean(x)
        r = tf.math.rsqrt(_mean(tf.square(x - m)) + 1e-5)
        return (x * g) * r - (m * r) * g + b

    return function


def _negated(builder):
    """(E[x] - x) times a negative inverse root."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        d = _mean(x) - x
        return b - d * tf.math.rsqrt(_mean(d * d) + 1e-5) * g

    return function


def _gamma_first(builder):
    """gamma meets the inverse root before x does."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        d = x - _mean(x)
        return d * (g / tf.sqrt(_mean(tf.math.squared_difference(x, _mean(x))) + 1e-5)) + b

    return function


def _divided(axis):
    """As the formula is written, the last axis by its number."""

    def make(builder):
        parameters = _affine(builder)

        def function(x):
            g, b = parameters(x)
            mean, variance = tf.nn.moments(x, [axis], keepdims=True)
            return (x - mean) / tf.sqrt(variance + 1e-5) * g + b

        return function

    return make


def _sufficient_statistics(builder):
    """TensorFlow's own way to moments of streams, about a shift."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        sums = tf.nn.sufficient_statistics(x, [-1], shift=x[..., :1], keepdims=True)
        mean, variance = tf.nn.normalize_moments(*sums)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3) * g + b

    return function


def _numpy_api(builder):
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        variance = tnp.var(x, -1, keepdims=True)
        return (x - tnp.mean(x, -1, keepdims=True)) / tnp.sqrt(variance + 1e-3) * g + b

    return function


def _euclidean(builder):
    """The deviation out of a Euclidean norm."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        d = x - _mean(x)
        length = tf.norm(d, axis=-1, keepdims=True)
        return d / tf.sqrt(length * length / 8 + 1e-3) * g + b

    return function


def _without_nan(builder):
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        d = x - _mean(x)
        return tf.math.divide_no_nan(d, tf.sqrt(_mean(d * d) + 1e-3)) * g + b

    return function


def _doubled(builder):
    """Of x + x, four times epsilon, and the halves of y added."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        m = _mean(x)
        w = tf.math.rsqrt(_mean(tf.math.squared_difference(x + x, m + m)) + 4e-5)
        return ((x - m) * w + w * (x - m)) * g + b

    return function


def _centred_twice(builder):
    """Centring what is centred changes nothing."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        once = x - _mean(x)
        twice = once - _mean(once)
        return twice * g / tf.sqrt(_mean(once * twice) + 1e-5) + b

    return function


def _weighted_sums(builder):
    """The mean as a sum of eighths."""
    parameters = _affine(builder)

    def function(x):
        g, b = parameters(x)
        d = x - tf.reduce_sum(x * 0.125, -1, keepdims=True)
        return d * tf.math.rsqrt(tf.reduce_sum(d * (d * 0.125), -1, keepdims=True) + 1e-5) * g + b

    return function


LINES = [
    Line(
        "hand.group.NHWC",
        _group_by_hand("NHWC"),
        {"group_norm": 1},
        (Input((2, 3, 5, 8)),),
        epsilon=1e-5,
        more=_HALF,
    ),
    Line(
        "hand.group.NCHW",
        _group_by_hand("NCHW"),
        {"group_norm": 1},
        (Input((2, 8, 3, 5), channels=(1,)),),
        epsilon=1e-5,
        # The graph reshapes ? x ? to 3 x 5, which may as well make columns rows: only what is
        # between the Reshapes is a normalization for sure, and gamma and beta come after.
        expect_by={"channels": {"layer_norm": 1}},
    ),
    Line("hand.two_views", _two_views, {"layer_norm": 1}, (Input((3, 5, 8)),), epsilon=1e-5),
    Line(
        "hand.heads",
        _heads,
        {"group_norm": 1},
        (Input((3, 5, 2, 4)),),
        more=_HALF,
        expect_by={"channels": {}},  # x may have one head, as far as the graph tells
    ),
    *[
        Line(
            f"adaptive.{how}",
            _adaptive(how),
            {"instance_norm": 1},
            (Input((2, 3, 5, 8)), Input((2, 16))),
            more=(("mixed_float16", STATIC, "train"), ("float32", STATIC, "train")),
        )
        for how in ("product", "batch_normalization")
    ],
    Line(
        "adaptive.group",
        _adaptive("product", (1, 2, 4), 2),
        {"group_norm": 1},
        (Input((2, 3, 5, 8)), Input((2, 16))),
        more=(("float32", STATIC, "train"),),
    ),
    Line(
        "hand.transposed",
        _transposed,
        {"layer_norm": 1},
        (Input((2, 6, 3, 5), channels=(1,)),),
        epsilon=1e-6,
    ),
    Line("hand.squeezed", _squeezed_means, {"layer_norm": 1}, (Input((3, 5, 8)),), epsilon=1e-5),
    Line(
        "hand.pieces_of_l2",
        _pieces_of_l2,
        {"rms_norm": 1},
        (Input((3, 5, 8)),),
        epsilon=1e-6,
        slow_policies=("float32", "float64"),
        slow_knowledge=(BATCH, CHANNELS),  # with numbers alone it is l2_normalize times one
    ),
    Line("odd.x_times_centered", _x_times_centered, {"layer_norm": 1}, _X, epsilon=1e-5),
    Line("odd.distributed", _distributed, {"layer_norm": 1}, _X, epsilon=1e-5),
    Line("odd.negated", _negated, {"layer_norm": 1}, _X, epsilon=1e-5),
    Line("odd.gamma_first", _gamma_first, {"layer_norm": 1}, _X, epsilon=1e-5),
    Line(
        "hand.divided.rows",
        _divided(1),
        {"layer_norm": 1},
        (Input((6, 8)),),
        epsilon=1e-5,
        more=(("float32", STATIC, "train"),),
        slow_policies=_NO_DOUBLE,
    ),
    Line(
        "hand.divided", _divided(2), {"layer_norm": 1}, _X, epsilon=1e-5, slow_policies=_NO_DOUBLE
    ),
    Line(
        "hand.sufficient_statistics",
        _sufficient_statistics,
        {"layer_norm": 1},
        _X,
        epsilon=1e-3,
        policies=("float32", "float64"),
    ),
    Line(
        "hand.numpy_api",
        _numpy_api,
        {"layer_norm": 1},
        _X,
        epsilon=1e-3,
        policies=("float32", "float64"),
        slow_policies=("float32", "float64", "float16", "mixed_float16"),  # it has no bfloat16
    ),
    Line("hand.euclidean", _euclidean, {"layer_norm": 1}, _X, epsilon=1e-3),
    Line("hand.without_nan", _without_nan, {"layer_norm": 1}, _X, epsilon=1e-3),
    # Written last; the recognizer needed nothing new for them. Of five that were tried, two stay as
    # they are: division by a fourth root, twice; a variance as half the mean square of differences.
    Line("odd.doubled", _doubled, {"layer_norm": 1}, _X, epsilon=1e-5),
    Line("odd.centred_twice", _centred_twice, {"layer_norm": 1}, _X, epsilon=1e-5),
    Line("odd.weighted_sums", _weighted_sums, {"layer_norm": 1}, _X, epsilon=1e-5),
]
