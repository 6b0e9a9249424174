"""Norms among neighbours: what Grappler moves across a layer's border, what several norms share."""

from __future__ import annotations

import keras
import tensorflow as tf

from ..line import BATCH, CHANNELS, STATIC, Input, Line

_X = (Input((3, 5, 8)),)
_TWO = (Input((3, 5, 8)), Input((3, 5, 8)))
_IMAGE = (Input((2, 4, 4, 6)),)
_MORE = (
    ("float32", STATIC, "infer"),
    ("float32", CHANNELS, "infer"),
    ("mixed_float16", BATCH, "infer"),
    ("float32", BATCH, "train"),
)

# Both read one cast of dy there, whose sum is the dbeta of both.
_ONE_DBETA = {r"float16/static/train": [3, 2]}


def _ln(builder, **options):
    return builder.layer(keras.layers.LayerNormalization, **options)


def _rms(builder, **options):
    return builder.layer(keras.layers.RMSNormalization, **options)


def _gn(builder, **options):
    return builder.layer(keras.layers.GroupNormalization, **options)


def _hand(x, epsilon=1e-5, axis=-1):
    d = x - tf.reduce_mean(x, axis, keepdims=True)
    v = tf.reduce_mean(tf.square(d), axis, keepdims=True)
    return d, v, tf.math.rsqrt(v + epsilon)


def _dense(builder, units=8):
    return builder.layer(keras.layers.Dense, units=units)


def add_input(b):
    norm = _ln(b)
    return lambda x: x + norm(x)


def add_other(b):
    norm = _ln(b)
    return lambda x, z: tf.nn.relu(norm(x) + z)


def subtract_from(b):
    norm = _ln(b)
    return lambda x, z: z - norm(x)


def add_two_norms(b):
    one, two = _ln(b), _ln(b)
    return lambda x, z: one(x) + two(z)


def add_two_norms_of_one(b):
    one, two = _ln(b), _ln(b, epsilon=1e-5)
    return lambda x: one(x) + two(x)


def add_constant(b):
    norm = _ln(b)
    return lambda x: norm(x) + 1.0


def add_vector(b):
    """A positional bias that varies along the sequence is no beta, but may stand next to it."""
    norm, bias = _ln(b), b.parameter("other", (5, 8))
    return lambda x: norm(x) + tf.cast(bias, x.dtype)


def times_constant(b):
    norm = _rms(b)
    return lambda x: norm(x) * 0.5


def _half_of(layer):
    """Grappler multiplies gamma by the constant, and dy: the layer's gamma is with half of dy."""

    def make(b):
        norm = layer(b)
        return lambda x: norm(x) * 0.5

    return make


def times_other(b):
    norm = _rms(b)
    return lambda x, z: norm(x) * z


def times_gate(b):
    norm = _rms(b)
    return lambda x, z: norm(x) * tf.nn.silu(z)


def times_per_row(b):
    norm = _rms(b)
    return lambda x, z: norm(x) * z[:, :1, :]


def modulated(b):
    """adaLN of diffusion transformers: LN(x) (1 + s) + t, s and t from the conditioning."""
    norm = _ln(b, scale=False, center=False)
    return lambda x, z: norm(x) * (1 + z[:, :1, :]) + z[:, 1:2, :]


def film(b):
    """A norm with a gamma and a beta, scaled and shifted behind that, as FiLM does."""
    norm = _ln(b)
    return lambda x, z: norm(x) * (1 + z[:, :1, :]) + z[:, 1:2, :]


def guided(b):
    """So do the residual blocks of guided diffusion, with a group norm."""
    norm = _gn(b, groups=2)
    return lambda x, z: tf.nn.silu(norm(x) * (1 + z[:, :1, :]) + z[:, 1:2, :])


def shared_moments(b):
    """Three layers on one x with one epsilon: CSE shares their statistics."""
    q, k, v = _ln(b), _ln(b), _ln(b)
    return lambda x: tf.concat([q(x), k(x), v(x)], -1)


def one_norm_used_twice(b):
    """Called twice it is two norms: its variables are read twice, and CSE does not merge reads."""
    norm = _ln(b)
    return lambda x: (norm(x), tf.nn.gelu(norm(x)))


def one_norm_used_three_times(b):
    """With an identity beside it, so that there are ten terms in dx."""
    norm = _rms(b)
    return lambda x: (x + norm(x), tf.nn.gelu(norm(x)), tf.sin(norm(x)))


def two_losses_of_one_norm(b):
    """y is read twice: one gradient, of the sum of both."""
    norm = _ln(b)

    def function(x):
        y = norm(x)
        return y, tf.nn.gelu(y)

    return function


def stacked(b):
    norms = [_ln(b) for _ in range(3)]

    def function(x):
        for norm in norms:
            x = norm(x)
        return x

    return function


def pre_norm_block(b):
    one, two, up, down = _ln(b), _ln(b), _dense(b), _dense(b)

    def function(x):
        x = x + down(tf.nn.gelu(up(one(x))))
        return x + two(x)

    return function


def post_norm_block(b):
    norm, dense = _ln(b), _dense(b)
    return lambda x: norm(x + dense(x))


def fetched_statistics(b):
    """Mean and variance are outputs too: y is fused, they stay available."""
    gamma = b.parameter("gamma", (8,))

    def function(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        y = tf.nn.batch_normalization(x, mean, variance, None, tf.cast(gamma, x.dtype), 1e-3)
        return y, mean, variance

    return function


def fetched_xhat(b):
    gamma, beta = b.parameter("gamma", (8,)), b.parameter("beta", (8,))

    def function(x):
        d, _, r = _hand(x)
        xhat = d * r
        return xhat * tf.cast(gamma, x.dtype) + tf.cast(beta, x.dtype), tf.identity(xhat)

    return function


def variance_used_elsewhere(b):
    norm_gamma = b.parameter("gamma", (8,))

    def function(x):
        d, v, r = _hand(x)
        return d * r * tf.cast(norm_gamma, x.dtype), tf.reduce_sum(tf.sqrt(v))

    return function


def gamma_shared(b):
    gamma = b.parameter("gamma", (8,))

    def function(x, z):
        (d, _, r), (e, _, s) = _hand(x), _hand(z)
        return d * r * tf.cast(gamma, x.dtype), e * s * tf.cast(gamma, x.dtype)

    return function


def gamma_computed(b):
    """A weight made of other weights, as in weight-normalized or low-rank adapters."""
    left, right = b.parameter("left", (8, 3)), b.parameter("right", (3, 1))

    def function(x):
        d, _, r = _hand(x)
        return d * r * tf.cast(1 + tf.squeeze(left @ right, -1), x.dtype)

    return function


def split_input(b):
    """x is the second output of a node with several."""
    norm = _ln(b)
    return lambda x, z: norm(tf.split(tf.concat([z, x], 0), 2)[1])


def after_convolution(b):
    convolution = b.layer(keras.layers.Conv2D, filters=6, kernel_size=3, padding="same")
    norm = _gn(b, groups=3)
    return lambda x: tf.nn.silu(norm(convolution(x)))


def instance_relu(b):
    norm = _gn(b, groups=-1)
    return lambda x: tf.nn.relu(norm(x))


def norm_of_norm_of_group(b):
    group, layer = _gn(b, groups=3), _ln(b)
    return lambda x: layer(group(x))


def recomputed(b):
    norm, dense = _ln(b), _dense(b)
    block = tf.recompute_grad(lambda x: dense(norm(x)))
    return lambda x: block(x)


def query_key(b):
    """Norms of rank 4 over the head's size, as on queries and keys."""
    q, k = (
        b.layer(keras.layers.RMSNormalization, (3, 5, 2, 4)),
        b.layer(keras.layers.RMSNormalization, (3, 5, 2, 4)),
    )

    def function(x):
        heads = tf.reshape(x, [-1, 5, 2, 4])
        return tf.einsum("bqhd,bkhd->bhqk", q(heads), k(heads))

    return function


LINES = [
    Line("context.add_input", add_input, {"layer_norm": 1}, _X, more=_MORE),
    Line("context.add_other", add_other, {"layer_norm": 1}, _TWO, more=_MORE),
    Line("context.subtract_from", subtract_from, {"layer_norm": 1}, _TWO),
    Line(
        "context.add_two_norms",
        add_two_norms,
        {"layer_norm": 2},
        _TWO,
        more=_MORE,
        outputs=_ONE_DBETA,
    ),
    Line(
        "context.add_two_norms_of_one",
        add_two_norms_of_one,
        {"layer_norm": 2},
        _X,
        more=_MORE,
        outputs=_ONE_DBETA,
    ),
    Line("context.add_constant", add_constant, {"layer_norm": 1}, _X),
    Line("context.add_vector", add_vector, {"layer_norm": 1}, _X, more=_MORE[:1]),
    Line(
        "context.times_constant",
        times_constant,
        {"rms_norm": 1},
        _X,
        more=_MORE,
    ),
    Line(
        "context.layer_times_constant",
        _half_of(lambda b: _ln(b, center=False)),
        {"layer_norm": 1},
        _X,
        more=_MORE[3:],
    ),
    Line(
        "context.group_times_constant",
        _half_of(lambda b: _gn(b, groups=3, center=False)),
        {"group_norm": 1},
        _IMAGE,
        more=_MORE[3:],
    ),
    Line("context.affine_times_constant", _half_of(_ln), {"layer_norm": 1}, _X, more=_MORE[3:]),
    Line("context.times_other", times_other, {"rms_norm": 1}, _TWO, more=_MORE),
    Line("context.times_gate", times_gate, {"rms_norm": 1}, _TWO, more=_MORE),
    Line("context.times_per_row", times_per_row, {"rms_norm": 1}, _TWO, more=_MORE),
    Line("context.modulated", modulated, {"layer_norm": 1}, _TWO, more=_MORE),
    Line("context.film", film, {"layer_norm": 1}, _TWO, more=_MORE),
    Line("context.guided", guided, {"group_norm": 1}, _TWO, more=_MORE),
    Line("context.shared_moments", shared_moments, {"layer_norm": 3}, _X, more=_MORE),
    Line(
        "context.one_norm_used_twice",
        one_norm_used_twice,
        {"layer_norm": 2},
        _X,
        more=_MORE,
        expect_by={"frozen": {"layer_norm": 1}},  # constants are merged, and so are the norms
    ),
    Line(
        "context.one_norm_used_three_times",
        one_norm_used_three_times,
        {"rms_norm": 3},
        _X,
        more=_MORE[3:],
        expect_by={"frozen": {"rms_norm": 1}},
    ),
    Line(
        "context.two_losses_of_one_norm",
        two_losses_of_one_norm,
        {"layer_norm": 1},
        _X,
        more=_MORE[3:],
    ),
    Line("context.stacked", stacked, {"layer_norm": 3}, _X, more=_MORE),
    Line("context.pre_norm_block", pre_norm_block, {"layer_norm": 2}, _X, more=_MORE),
    Line("context.post_norm_block", post_norm_block, {"layer_norm": 1}, _X, more=_MORE),
    Line(
        "context.fetched_statistics",
        fetched_statistics,
        {"layer_norm": 1},
        _X,
        more=_MORE,
        outputs={"train": [1]},  # dx goes through the statistics, which the loss reads, too
    ),
    Line(
        "context.fetched_xhat",
        fetched_xhat,
        {"layer_norm": 1},
        _X,
        more=_MORE,
        outputs={"train": [2]},  # dx goes through xhat, which the loss reads, too
    ),
    Line(
        "context.variance_used",
        variance_used_elsewhere,
        {"layer_norm": 1},
        _X,
        outputs={"train": [1]},  # dx goes through the variance, which the loss reads, too
    ),
    Line("context.gamma_shared", gamma_shared, {"layer_norm": 2}, _TWO),
    Line("context.gamma_computed", gamma_computed, {"layer_norm": 1}, _X),
    Line("context.split_input", split_input, {"layer_norm": 1}, _TWO),
    Line("context.after_convolution", after_convolution, {"group_norm": 1}, _IMAGE, more=_MORE[:1]),
    Line("context.instance_relu", instance_relu, {"instance_norm": 1}, _IMAGE),
    Line(
        "context.group_then_layer",
        norm_of_norm_of_group,
        {"group_norm": 1, "layer_norm": 1},
        _IMAGE,
    ),
    Line(
        "context.recomputed",
        recomputed,
        {"layer_norm": 1},
        _X,
        more=(("float32", BATCH, "train"),),
        expect_by={"train": {"layer_norm": 2}},  # one of them for the gradient alone
        gradients={"layer_norm": 1},
        outputs={"train": [3]},  # one forward has no gradient
    ),
    Line("context.query_key", query_key, {"rms_norm": 2}, _X, more=_MORE[:2]),
]
