"""Fused normalizations to call by name: layer, instance, group and RMS norm.

Each function is one op, forward and backward, on the CPU and on NVIDIA GPUs; each layer takes the
place of Keras' layer of that name::

    import nv_norms

    y, mean, inv_std = nv_norms.fused_layer_norm(x, scale, offset)
    layer = nv_norms.LayerNormalization(axis=-1, epsilon=1e-6)

For all of them: x is float16, bfloat16, float32 or float64, and y has x's shape and type. mean and
inv_std are float32, or float64 for a float64 x, and constants to a GradientTape: gradients of y
reach x, scale and offset, a loss on mean or inv_std has a gradient of zero. scale and offset have a
floating type of their own, one for both. Bad arguments raise ValueError (a shape, an axis, a
number, a format) or TypeError (a type), while tracing where shapes are known.

Formulas: Ba, Kiros, Hinton 2016 (arXiv:1607.06450, layer norm); Ulyanov, Vedaldi, Lempitsky 2016
(arXiv:1607.08022, instance norm); Wu, He 2018 (arXiv:1803.08494, group norm); Zhang, Sennrich 2019
(arXiv:1910.07467, RMS norm).

Importing this package loads the ops and changes nothing else in the program. To have an unmodified
model's normalizations replaced by these ops, import nv_norms_rewriter instead. Where Keras is
imported (TensorFlow does so itself, if it finds Keras), models that were saved with these layers
and functions can be loaded.

The names that end in ``_op`` are those of NVIDIA/atex's nv_norms.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._functions import fused_group_norm, fused_instance_norm, fused_layer_norm, fused_rms_norm
from ._gradients import fused_instance_norm_grad_op, fused_layer_norm_grad_op

if TYPE_CHECKING:
    from ._layers import (
        GroupNormalization,
        InstanceNormalization,
        LayerNormalization,
        RMSNormalization,
    )

__all__ = [
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "fused_group_norm",
    "fused_instance_norm",
    "fused_instance_norm_grad_op",
    "fused_instance_norm_op",
    "fused_layer_norm",
    "fused_layer_norm_grad_op",
    "fused_layer_norm_op",
    "fused_rms_norm",
]

fused_layer_norm_op = fused_layer_norm
fused_instance_norm_op = fused_instance_norm

_LAYERS = frozenset(name for name in __all__ if name.endswith("Normalization"))


def _register_with_keras() -> None:
    """Keras finds the classes of a saved model by their names once their modules are imported."""
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() == "tensorflow":
        for module in ("_layers", "_operation"):
            importlib.import_module(f".{module}", __name__)


def __getattr__(name: str) -> Any:
    """The layers; without them Keras is not needed."""
    if name in _LAYERS:
        from . import _layers

        return getattr(_layers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_register_with_keras()
