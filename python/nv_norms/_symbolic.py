"""Lets the functions take Keras' symbolic tensors, as TensorFlow ops did before Keras 3:

    y = nv_norms.fused_layer_norm(keras.Input((8,)), layer.gamma, layer.beta).y

Keras then has an operation in the model, which calls the function when the model runs. As with any
such operation, Variables among its arguments are not the model's; layers are, so prefer them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def takes_keras_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose first argument may be a KerasTensor as well."""

    @functools.wraps(function)
    def wrapper(x: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_keras_tensor(x):
            return _operation(function)(x, *args, **kwargs)
        return function(x, *args, **kwargs)

    return wrapper


def _is_keras_tensor(x: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(x, keras.KerasTensor)


def _operation(function: Callable[..., Any]) -> Any:
    import keras

    class Normalization(keras.Operation):
        def call(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            return function(x, *args, **kwargs)

        def compute_output_spec(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            return keras.src.backend.compute_output_spec(self.call, x, *args, **kwargs)

    return Normalization(name=keras.src.utils.naming.auto_name(function.__name__))
