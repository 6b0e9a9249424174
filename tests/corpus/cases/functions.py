"""Norms written without a layer: tf.nn.moments and the forms that people write by hand."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from ..line import BATCH, CHANNELS, RANK, STATIC, Input, Line

_HALF = (("mixed_float16", STATIC, "infer"), ("mixed_bfloat16", CHANNELS, "infer"))
_SHAPES = tuple(("float32", knowledge, "infer") for knowledge in (STATIC, CHANNELS, RANK))
_WAYS = tuple(
    ("float32", BATCH, mode) for mode in ("session", "saved", "dataset", "while", "cond", "nested")
)
_FROZEN = (("float32", STATIC, "frozen"), ("float32", BATCH, "frozen"))
_TRAIN = (("float32", STATIC, "train"), ("float32", BATCH, "train"))

# An inverse root of v + epsilon, as people take it. Each gives x and r, and returns x * r.
_ROOTS: dict[str, Callable] = {
    "rsqrt": lambda x, v: x * tf.math.rsqrt(v),
    "sqrt_div": lambda x, v: x / tf.sqrt(v),
    "reciprocal": lambda x, v: x * tf.math.reciprocal(tf.sqrt(v)),
    "pow": lambda x, v: x * tf.pow(v, tf.constant(-0.5, v.dtype)),
    "pow_div": lambda x, v: x / tf.pow(v, tf.constant(0.5, v.dtype)),
    "one_over": lambda x, v: x * (tf.constant(1.0, v.dtype) / tf.sqrt(v)),
    "rsqrt_of_inverse": lambda x, v: x * tf.sqrt(tf.math.reciprocal(v)),
}


def _mean(x, axes):
    return tf.reduce_mean(x, axes, keepdims=True)


# A variance, as people take it. Each returns (centered x, variance) in the type of x.
def _centered(x, axes):
    d = x - _mean(x, axes)
    return d, _mean(tf.square(d), axes)


def _centered_product(x, axes):
    d = x - _mean(x, axes)
    return d, _mean(d * d, axes)


def _squared_difference(x, axes):
    m = _mean(x, axes)
    return x - m, _mean(tf.math.squared_difference(x, m), axes)


def _raw_moments(x, axes):
    m = _mean(x, axes)
    return x - m, _mean(tf.square(x), axes) - tf.square(m)


def _reduce_variance(x, axes):
    return x - _mean(x, axes), tf.math.reduce_variance(x, axes, keepdims=True)


def _std_squared(x, axes):
    return x - _mean(x, axes), tf.square(tf.math.reduce_std(x, axes, keepdims=True))


def _sums(x, axes):
    sizes = [tf.shape(x)[axis % x.shape.rank] for axis in axes]
    count = tf.cast(tf.reduce_prod(sizes), x.dtype)
    d = x - tf.reduce_sum(x, axes, keepdims=True) / count
    return d, tf.reduce_sum(d * d, axes, keepdims=True) / count


def _pow_two(x, axes):
    d = x - _mean(x, axes)
    return d, _mean(tf.pow(d, tf.constant(2.0, x.dtype)), axes)


def _two_means(x, axes):
    """The mean of the square takes its own mean, as after inlining two helpers."""
    return x - tf.reduce_mean(x, axes, keepdims=True), _mean(
        tf.square(tf.subtract(x, tf.math.reduce_mean(tf.identity(x), axes, keepdims=True))), axes
    )


_VARIANCES: dict[str, Callable] = {
    "centered": _centered,
    "centered_product": _centered_product,
    "squared_difference": _squared_difference,
    "raw_moments": _raw_moments,
    "reduce_variance": _reduce_variance,
    "std_squared": _std_squared,
    "sums": _sums,
    "pow_two": _pow_two,
    "two_means": _two_means,
}


# How gamma and beta are put on xhat.
_AFFINE: dict[str, Callable] = {
    "gamma_beta": lambda xhat, g, b: xhat * g + b,
    "beta_first": lambda xhat, g, b: b + g * xhat,
    "one_plus_gamma": lambda xhat, g, b: xhat * (1 + g) + b,
    "minus_beta": lambda xhat, g, b: xhat * g - b,
    "gamma": lambda xhat, g, b: xhat * g,
    "over_gamma": lambda xhat, g, b: xhat / g + b,
    "plain": lambda xhat, g, b: xhat,
}


def _parameters(builder, axes, shape, per_axis):
    """gamma and beta in the policy's variable type, with the shape in which they broadcast."""
    full = tuple(size if i in per_axis else 1 for i, size in enumerate(shape))
    first = min(per_axis) if per_axis else len(shape)
    full = full[first:]
    return builder.parameter("gamma", full), builder.parameter("beta", full)


def _wrap(builder, normalize):
    """`mixed_*` policies normalize in float32 between two casts, others in their own type."""
    dtype = tf.float32 if builder.policy.startswith("mixed_") else builder.dtype
    return lambda x: tf.cast(normalize(tf.cast(x, dtype)), builder.dtype)


def hand(
    name,
    shape=(3, 5, 8),
    axes=(-1,),
    *,
    variance="centered",
    root="rsqrt",
    affine="gamma_beta",
    per_axis=None,
    epsilon=1e-5,
    kind="layer_norm",
    **fields,
):
    """variance, root and affine name an entry each of the tables above."""

    positive = tuple(a % len(shape) for a in axes)
    channels = positive if per_axis is None else per_axis

    def make(builder):
        gamma, beta = _parameters(builder, axes, shape, channels)
        take, invert, put = _VARIANCES[variance], _ROOTS[root], _AFFINE[affine]

        def normalize(x):
            centered, v = take(x, list(axes))
            g, b = tf.cast(gamma, x.dtype), tf.cast(beta, x.dtype)
            return put(invert(centered, v + tf.constant(epsilon, x.dtype)), g, b)

        return _wrap(builder, normalize)

    given = (Input(shape, channels=channels),)
    return Line(f"hand.{name}", make, {kind: 1}, given, epsilon=epsilon, axes=axes, **fields)


def hand_rms(name, shape=(3, 5, 8), axes=(-1,), *, root="rsqrt", affine="gamma", square=tf.square,
             epsilon=1e-6, **fields):  # fmt: skip
    """The root of the mean square, with the same tables."""

    positive = tuple(a % len(shape) for a in axes)

    def make(builder):
        gamma, beta = _parameters(builder, axes, shape, positive)

        def normalize(x):
            v = _mean(square(x), list(axes)) + tf.constant(epsilon, x.dtype)
            g, b = tf.cast(gamma, x.dtype), tf.cast(beta, x.dtype)
            return _AFFINE[affine](_ROOTS[root](x, v), g, b)

        return _wrap(builder, normalize)

    return Line(
        f"hand_rms.{name}",
        make,
        {"rms_norm": 1},
        (Input(shape, channels=positive),),
        epsilon=epsilon,
        axes=axes,
        **fields,
    )


def moments(name, shape, axes, per_axis, *, kind, epsilon=1e-3, parameters=True, **fields):
    """tf.nn.moments + tf.nn.batch_normalization."""

    def make(builder):
        gamma, beta = _parameters(builder, axes, shape, per_axis)

        def normalize(x):
            mean, variance = tf.nn.moments(x, list(axes), keepdims=True)
            g, b = (tf.cast(gamma, x.dtype), tf.cast(beta, x.dtype)) if parameters else (None, None)
            return tf.nn.batch_normalization(x, mean, variance, b, g, epsilon)

        return _wrap(builder, normalize)

    given = (Input(shape, channels=per_axis),)
    return Line(f"moments.{name}", make, {kind: 1}, given, epsilon=epsilon, axes=axes, **fields)


# TensorFlow 2.21's remapper makes _MklLayerNorm of these, which has no float64: they fail to run.
_NO_FLOAT64 = "float64/.*/frozen"

LINES = [
    hand("rsqrt", more=_HALF + _SHAPES + _FROZEN + _TRAIN + (("float64", BATCH, "infer"),)),
    hand("sqrt_div", root="sqrt_div", more=_HALF + _FROZEN + _TRAIN),
    hand("reciprocal", root="reciprocal", more=_HALF),
    hand("pow", root="pow", more=_HALF),
    hand("pow_div", root="pow_div"),
    hand("one_over", root="one_over"),
    hand("rsqrt_of_inverse", root="rsqrt_of_inverse"),
    hand("centered_product", variance="centered_product", more=_TRAIN),
    hand("squared_difference", variance="squared_difference", more=_FROZEN),
    hand("raw_moments", variance="raw_moments", more=_HALF + _SHAPES + _FROZEN + _TRAIN),
    hand("raw_moments.sqrt_div", variance="raw_moments", root="sqrt_div"),
    hand("reduce_variance", variance="reduce_variance", more=_HALF),
    hand("std_squared", variance="std_squared"),
    hand("sums", variance="sums", more=(("float32", STATIC, "infer"),)),
    hand("pow_two", variance="pow_two"),
    hand("two_means", variance="two_means"),
    hand("beta_first", affine="beta_first"),
    hand("one_plus_gamma", affine="one_plus_gamma", more=_HALF + _FROZEN),
    hand("minus_beta", affine="minus_beta"),
    hand("gamma_only", affine="gamma"),
    hand("over_gamma", affine="over_gamma"),
    hand("plain", affine="plain", more=_SHAPES),
    hand("rank2", (6, 12), more=_FROZEN),
    hand("rank1_axis_of_rank2", (5, 5), (1,)),
    hand("two_axes", (2, 4, 3, 5), (2, 3)),
    hand("middle_axis", (2, 7, 5), (1,)),
    hand("in_half", policies=("float16", "bfloat16")),
    hand("instance", (2, 3, 5, 6), (1, 2), per_axis=(3,), kind="instance_norm", more=_FROZEN),
    hand("instance.first", (2, 6, 3, 5), (2, 3), per_axis=(1,), kind="instance_norm"),
    hand("instance.rank3", (2, 5, 6), (1,), per_axis=(2,), kind="instance_norm"),
    hand("instance.rank5", (2, 3, 2, 4, 6), (1, 2, 3), per_axis=(4,), kind="instance_norm"),
    hand(
        "instance.plain",
        (2, 3, 5, 6),
        (1, 2),
        affine="plain",
        kind="instance_norm/layer_norm",
        more=(("float16", STATIC, "train"),),  # 1 / 15 is rounded
    ),
    hand(
        "instance.raw_moments",
        (2, 3, 5, 6),
        (1, 2),
        variance="raw_moments",
        per_axis=(3,),
        kind="instance_norm",
    ),
    hand(
        "one_group",
        (2, 3, 5, 6),
        (1, 2, 3),
        per_axis=(3,),
        kind="group_norm",
    ),
    hand_rms("rsqrt", more=_HALF + _SHAPES + _TRAIN),
    hand_rms("sqrt_div", root="sqrt_div", more=_HALF + _TRAIN),
    hand_rms("reciprocal", root="reciprocal"),
    hand_rms("pow", root="pow"),
    hand_rms("one_plus_gamma", affine="one_plus_gamma"),
    hand_rms("product", square=lambda x: x * x),
    hand_rms("pow_two", square=lambda x: tf.pow(x, tf.constant(2.0, x.dtype))),
    hand_rms("with_beta", affine="gamma_beta"),
    hand_rms("plain", affine="plain"),
    hand_rms("two_axes", (2, 4, 3, 5), (2, 3)),
    moments("last", (3, 5, 8), (-1,), (2,), kind="layer_norm", more=_HALF + _SHAPES + _FROZEN),
    moments(
        "last.positive",
        (3, 5, 8),
        (2,),
        (2,),
        kind="layer_norm",
        more=(*_FROZEN, *_TRAIN, ("float64", BATCH, "frozen")),
        stock_is_wrong=_NO_FLOAT64,
    ),
    moments("plain", (3, 5, 8), (-1,), (2,), kind="layer_norm", parameters=False),
    moments(
        "instance",
        (2, 3, 5, 6),
        (1, 2),
        (3,),
        kind="instance_norm",
        more=_HALF + _FROZEN + _WAYS,
    ),
    moments(
        "instance.first",
        (2, 6, 3, 5),
        (2, 3),
        (1,),
        kind="instance_norm",
        more=_FROZEN,
    ),
    moments(
        "instance.rank5",
        (2, 3, 2, 4, 6),
        (1, 2, 3),
        (4,),
        kind="instance_norm",
        more=_FROZEN,
    ),
    moments("one_group", (2, 3, 5, 6), (1, 2, 3), (3,), kind="group_norm"),
]
