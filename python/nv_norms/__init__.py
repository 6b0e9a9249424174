"""Fused normalizations to call by name: layer, instance, group and RMS norm.

Each function is one op, forward and backward, on the CPU and on NVIDIA GPUs; each layer takes the
place of Keras' layer of that name::

    import nv_norms

    y, mean, inv_std = nv_norms.fused_layer_norm(x, scale, offset)
    layer = nv_norms.LayerNormalization(axis=-1, epsilon=1e-6)

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
    return sorted({*globals(), *__all__})


_register_with_keras()
