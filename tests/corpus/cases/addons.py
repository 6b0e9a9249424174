"""tensorflow-addons 0.23, on tf_keras. It needs a process of its own: see _import()."""

from __future__ import annotations

import importlib
import os
import sys

from ..line import BATCH, CHANNELS, STATIC, Input, Line

_HALF = (("mixed_float16", STATIC, "infer"), ("mixed_bfloat16", BATCH, "infer"))
_SHAPES = (("float32", STATIC, "infer"), ("float32", CHANNELS, "infer"))
_TRAIN = (("float32", STATIC, "train"), ("float32", BATCH, "train"))
_FROZEN = (("float32", STATIC, "frozen"), ("float32", BATCH, "frozen"))


def _import():
    """tensorflow_addons looks for Keras 2 under the names that Keras 3 has taken over."""
    if "tensorflow_addons" not in sys.modules:
        if os.environ.get("TF_USE_LEGACY_KERAS") != "1" or "keras" in sys.modules:
            raise RuntimeError(
                "tensorflow-addons needs a process that was started with TF_USE_LEGACY_KERAS=1 "
                "and that has not imported Keras 3"
            )
        source = importlib.import_module("tf_keras.src")
        sys.modules["keras"] = importlib.import_module("tf_keras")
        sys.modules["keras.src"] = source
        for name in ("engine", "engine.keras_tensor", "utils", "utils.tf_utils"):
            module = importlib.import_module(f"tf_keras.src.{name}")
            sys.modules[f"keras.src.{name}"] = module
    return importlib.import_module("tensorflow_addons")


def addons(name, cls, shape, kind, *, axis=-1, epsilon=1e-3, **options):
    fields = {key: options.pop(key) for key in list(options) if key in Line.__dataclass_fields__}

    def make(builder):
        layer = getattr(_import().layers, cls)
        return builder.layer(layer, axis=axis, epsilon=epsilon, **options)

    return Line(
        f"tfa_{name}",
        make,
        {kind: 1},
        (Input(shape, channels=(axis,)),),
        epsilon=epsilon,
        needs="tensorflow_addons",
        **fields,
    )


def instance(name, shape, **options):
    return addons(f"in.{name}", "InstanceNormalization", shape, "instance_norm", **options)


def group(name, shape, kind="group_norm", **options):
    return addons(f"gn.{name}", "GroupNormalization", shape, kind, **options)


LINES = [
    instance("last", (2, 3, 5, 6), more=_HALF + _SHAPES + _TRAIN + _FROZEN),
    instance("first", (2, 6, 3, 5), axis=1, more=_HALF),
    instance("rank3", (2, 5, 6)),
    instance("rank5", (2, 3, 2, 4, 6), more=_FROZEN),
    instance("no_scale", (2, 3, 5, 6), scale=False),
    instance("no_center", (2, 3, 5, 6), center=False),
    group("groups4", (2, 3, 5, 8), groups=4, more=_HALF + _SHAPES + _TRAIN + _FROZEN),
    group("groups4.first", (2, 8, 3, 5), groups=4, axis=1),
    group("one_group", (2, 3, 5, 8), groups=1),
    group("groups_all", (2, 3, 5, 8), kind="instance_norm", groups=8),
    group("rank3", (2, 5, 8), groups=2),
    group("plain", (2, 3, 5, 8), groups=4, scale=False, center=False),
]
