"""Keras 3's own normalization layers and operations."""

from __future__ import annotations

import keras

from ..line import BATCH, CHANNELS, POLICIES, RANK, STATIC, Input, Line

_ALL_KNOWLEDGE = (STATIC, BATCH, CHANNELS, RANK)


def _layer(make, **options):
    return lambda builder: builder.layer(make, **options)


def ln(name, shape, axes, *, epsilon=1e-3, kind="layer_norm", more=(), **options):
    """LayerNormalization over `axes`, as the user gives them."""
    fields = {key: options.pop(key) for key in list(options) if key in Line.__dataclass_fields__}
    every = tuple(axes) if isinstance(axes, (list, tuple)) else (axes,)
    return Line(
        f"k3_ln.{name}",
        _layer(keras.layers.LayerNormalization, axis=axes, epsilon=epsilon, **options),
        {kind: 1},
        (Input(shape, channels=every),),
        epsilon=epsilon,
        axes=every,
        more=more,
        **fields,
    )


def gn(name, shape, groups, axis=-1, *, epsilon=1e-3, kind="group_norm", more=(), **options):
    fields = {key: options.pop(key) for key in list(options) if key in Line.__dataclass_fields__}
    return Line(
        f"k3_gn.{name}",
        _layer(
            keras.layers.GroupNormalization, groups=groups, axis=axis, epsilon=epsilon, **options
        ),
        {kind: 1},
        (Input(shape, channels=(axis,)),),
        epsilon=epsilon,
        more=more,
        **fields,
    )


def rms(name, shape, axis=-1, *, epsilon=1e-6, more=(), **options):
    fields = {key: options.pop(key) for key in list(options) if key in Line.__dataclass_fields__}
    every = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    return Line(
        f"k3_rms.{name}",
        _layer(keras.layers.RMSNormalization, axis=axis, epsilon=epsilon, **options),
        {"rms_norm": 1},
        (Input(shape, channels=every),),
        epsilon=epsilon,
        axes=every,
        more=more,
        **fields,
    )


def _ops_layer_normalization(axis, scaled):
    def make(builder):
        size = builder.shapes[0][axis]
        gamma = builder.parameter("gamma", (size,)) if scaled else None
        beta = builder.parameter("beta", (size,)) if scaled else None
        return lambda x: keras.ops.layer_normalization(x, gamma, beta, axis=axis, epsilon=1e-5)

    return make


def _ops_rms_normalization(axis, scaled):
    def make(builder):
        gamma = builder.parameter("gamma", (builder.shapes[0][axis],)) if scaled else None
        return lambda x: keras.ops.rms_normalization(x, gamma, axis=axis, epsilon=1e-5)

    return make


# Instance and layer normalization over the spatial axes coincide where no parameter tells them
# apart, and so do group normalization with one group and layer normalization over all axes.
_INSTANCE = "instance_norm/layer_norm"
_ONE_GROUP = "group_norm/layer_norm"

_EVERY_POLICY = tuple((policy, BATCH, "infer") for policy in POLICIES)
_EVERY_SHAPE = tuple(("float32", knowledge, "infer") for knowledge in _ALL_KNOWLEDGE)
_RANKLESS_TRAINING = (("float32", RANK, "train"), ("mixed_float16", RANK, "train"))
_EVERY_MODE = tuple(
    ("float32", BATCH, mode)
    for mode in (
        *("train", "split_train", "frozen", "session", "saved"),
        *("dataset", "while", "cond", "map_fn", "noinline", "nested"),
    )
)
_HALF = (("mixed_float16", STATIC, "infer"), ("mixed_bfloat16", CHANNELS, "infer"))

LINES = [
    ln(
        "last",
        (3, 5, 8),
        -1,
        more=_EVERY_POLICY + _EVERY_SHAPE + _EVERY_MODE + _RANKLESS_TRAINING,
    ),
    ln("last.rank2", (6, 12), -1, more=_HALF + (("float32", STATIC, "frozen"),)),
    ln("last.rank4", (2, 3, 4, 6), -1, more=_EVERY_SHAPE),
    # (Where the rank is unknown, nobody can tell that axis 2 is the last.)
    ln("positive", (3, 5, 8), 2, more=_EVERY_SHAPE[:3] + _HALF),
    ln("no_scale", (3, 5, 8), -1, scale=False, more=_HALF),
    ln("no_center", (3, 5, 8), -1, center=False, more=_HALF),
    ln("plain", (3, 5, 8), -1, center=False, scale=False, more=_HALF),
    ln("two_last", (2, 4, 3, 5), [-2, -1], more=_HALF + (("float32", STATIC, "train"),)),
    ln("three_last", (2, 4, 3, 5), [1, 2, 3], more=_HALF),
    ln("middle", (2, 7, 5), 1, more=_HALF),
    ln("middle.negative", (2, 7, 5), -2),
    ln("first_of_two", (2, 4, 3, 5), [1, 2]),
    ln("apart", (2, 4, 3, 5), [1, 3], more=_HALF),
    ln("unsorted", (2, 4, 3, 5), [3, 1]),
    ln("mixed_signs", (2, 4, 3, 5), [-1, 2]),
    ln("square", (4, 4, 4), -1),
    ln("epsilon_1e-12", (3, 5, 8), -1, epsilon=1e-12),
    ln("epsilon_0.1", (3, 5, 8), -1, epsilon=0.1, more=(("float64", BATCH, "infer"),)),
    ln("rms_scaling", (3, 5, 8), -1, rms_scaling=True, more=_EVERY_SHAPE[:2] + _HALF),
    ln("rms_scaling.two", (2, 4, 3, 5), [2, 3], rms_scaling=True),
    ln("wide", (2, 300), -1, slow=True),
    gn("groups4", (2, 3, 5, 8), 4, more=_EVERY_POLICY + _EVERY_SHAPE[:3] + _EVERY_MODE[:5]),
    gn("groups32", (2, 3, 2, 64), 32, more=_HALF),
    gn("groups_all", (2, 3, 5, 6), 6, kind="instance_norm", more=_HALF),
    gn("instance", (2, 3, 5, 6), -1, kind="instance_norm", more=_EVERY_SHAPE[:3] + _HALF),
    gn("one_group", (2, 3, 5, 6), 1, more=_HALF),
    gn("groups4.first", (2, 8, 3, 5), 4, 1, more=_HALF + (("float32", STATIC, "infer"),)),
    gn("instance.first", (2, 6, 3, 5), -1, 1, kind="instance_norm"),
    gn("one_group.first", (2, 6, 3, 5), 1, 1),
    gn("groups2.rank3", (2, 5, 8), 2, more=_HALF),
    gn("groups2.rank5", (2, 3, 2, 4, 6), 2),
    gn("groups2.rank5.first", (2, 6, 3, 2, 4), 2, 1),
    gn("no_scale", (2, 3, 5, 8), 4, scale=False),
    gn("no_center", (2, 3, 5, 8), 4, center=False),
    gn("plain", (2, 3, 5, 8), 4, scale=False, center=False),
    gn("one_group.plain", (2, 3, 5, 6), 1, scale=False, center=False, kind=_ONE_GROUP),
    gn("instance.plain", (2, 3, 5, 6), -1, scale=False, center=False, kind=_INSTANCE),
    rms(
        "last",
        (3, 5, 8),
        more=_EVERY_POLICY + _EVERY_SHAPE + _EVERY_MODE[:6] + _RANKLESS_TRAINING,
    ),
    rms("rank2", (6, 12)),
    rms("two_axes", (2, 4, 3, 5), [-2, -1]),
    rms("fine_gamma", (3, 5, 8), fine_parameters=True, policies=("float32", "float64")),
    Line(
        "k3_ops.layer_normalization",
        _ops_layer_normalization(-1, True),
        {"layer_norm": 1},
        (Input((3, 5, 8)),),
        epsilon=1e-5,
        axes=(-1,),
        more=_HALF,
    ),
    Line(
        "k3_ops.layer_normalization.plain",
        _ops_layer_normalization(1, False),
        {"layer_norm": 1},
        (Input((3, 5, 8)),),
        epsilon=1e-5,
        axes=(1,),
    ),
    Line(
        "k3_ops.rms_normalization",
        _ops_rms_normalization(-1, True),
        {"rms_norm": 1},
        (Input((3, 5, 8)),),
        epsilon=1e-5,
        axes=(-1,),
        more=_HALF,
    ),
    Line(
        "k3_ops.rms_normalization.plain",
        _ops_rms_normalization(1, False),
        {"rms_norm": 1},
        (Input((3, 5, 8)),),
        epsilon=1e-5,
        axes=(1,),
    ),
]
