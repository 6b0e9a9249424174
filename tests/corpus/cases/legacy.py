"""tf_keras (Keras 2): LayerNormalization has three forms, GroupNormalization weighted moments."""

from __future__ import annotations

from pathlib import Path

from ..line import BATCH, CHANNELS, STATIC, Input, Line

_HALF = (("mixed_float16", STATIC, "infer"), ("mixed_bfloat16", BATCH, "infer"))
_SHAPES = (("float32", STATIC, "infer"), ("float32", CHANNELS, "infer"))
_TRAIN = (("float32", STATIC, "train"), ("float32", BATCH, "train"))
# TensorFlow 2.21's remapper makes _MklLayerNorm of these, which has no float64: they fail to run.
_NO_FLOAT64 = "float64/.*/frozen"
_FROZEN = (("float32", STATIC, "frozen"), ("float32", BATCH, "frozen"))
_CPU = Path("/proc/cpuinfo")
# The types of which it makes one: with oneDNN, float16 only where the CPU computes in it.
_OF_MKL = "float32|mixed_bfloat16"
if _CPU.exists() and "avx512_fp16" in _CPU.read_text():
    _OF_MKL += "|mixed_float16"


def legacy(name, cls, shape, kind, *, epsilon=1e-3, axes=None, **options):
    fields = {key: options.pop(key) for key in list(options) if key in Line.__dataclass_fields__}

    def make(builder):
        import tf_keras

        layer = getattr(tf_keras.layers, cls)
        given = {"axis": list(axes)} if axes else {}
        return builder.layer(layer, epsilon=epsilon, **given, **options)

    return Line(
        f"tfk_{name}",
        make,
        {kind: 1},
        (Input(shape, channels=axes or (options.get("axis", -1),)),),
        epsilon=epsilon,
        axes=axes,
        needs="tf_keras",
        **fields,
    )


def ln(name, shape, axes, **options):
    return legacy(f"ln.{name}", "LayerNormalization", shape, "layer_norm", axes=axes, **options)


def gn(name, shape, kind="group_norm", **options):
    return legacy(f"gn.{name}", "GroupNormalization", shape, kind, **options)


LINES = [
    # A large epsilon and trailing axes: FusedBatchNormV3, which becomes _MklLayerNorm for an
    # unknown batch in inference.
    ln(
        "fused",
        (3, 5, 8),
        (-1,),
        more=_HALF + _SHAPES + _TRAIN + _FROZEN,
        stock_is_wrong=_NO_FLOAT64,
    ),
    ln("fused.rank2", (6, 12), (-1,), more=_SHAPES, stock_is_wrong=_NO_FLOAT64),
    ln("fused.rank4", (2, 3, 4, 6), (-1,), more=_SHAPES),
    ln("fused.no_scale", (3, 5, 8), (-1,), scale=False, more=_SHAPES),
    ln("fused.no_center", (3, 5, 8), (-1,), center=False),
    ln("fused.plain", (3, 5, 8), (-1,), center=False, scale=False, more=_SHAPES),
    ln("fused.two_axes", (2, 4, 3, 5), (-2, -1), knowledge=(STATIC, BATCH)),
    # Stock TensorFlow makes an op of this one that does not run: it takes a vector for gamma.
    ln(
        "miscompiled.two_axes",
        (2, 8, 8),
        (-2, -1),
        more=_TRAIN + _FROZEN,
        stock_is_wrong=f"^float32/(batch|channels)/infer|^({_OF_MKL})/(batch|channels)/frozen",
    ),
    # A small epsilon, which the remapper loses when it makes _MklLayerNorm of the frozen graph:
    # tf.nn.moments + tf.nn.batch_normalization.
    ln(
        "small_epsilon",
        (3, 5, 8),
        (-1,),
        epsilon=1e-12,
        expect_by={"float16": {}},  # where it is 0
        more=_HALF + _SHAPES + _TRAIN + _FROZEN,
        stock_is_wrong="float(32|64)/.*/frozen",
    ),
    ln("small_epsilon.plain", (3, 5, 8), (-1,), epsilon=1e-6, center=False, scale=False),
    # Axes that do not trail.
    ln("middle", (2, 7, 5), (1,), more=_HALF),
    ln("apart", (2, 4, 3, 5), (1, 3)),
    gn("groups4", (2, 3, 5, 8), groups=4, more=_HALF + _SHAPES + _TRAIN),
    gn("one_group", (2, 3, 5, 8), groups=1),
    gn(
        "instance",
        (2, 3, 5, 8),
        kind="instance_norm",
        groups=-1,
        more=(*_SHAPES, *((policy, STATIC, "train") for policy in ("float32", "mixed_float16"))),
        slow_modes=("infer", "frozen"),  # unknown batch, and the gradient by way of a flat tensor
    ),
    gn("groups4.first", (2, 8, 3, 5), groups=4, axis=1),
    gn("plain", (2, 3, 5, 8), groups=4, scale=False, center=False),
]
