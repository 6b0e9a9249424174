"""Lets the functions take Keras' symbolic tensors, as TensorFlow ops did before Keras 3:

    y = nv_norms.fused_layer_norm(keras.Input((8,)), layer.gamma, layer.beta).y

Keras then has an operation in the model, which calls the function when the model runs. As with any
such operation, Variables among its arguments are not the model's, and a model that has some cannot
be saved; layers are the model's, so prefer them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any


def takes_keras_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose tensors may be KerasTensors as well."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if any(_is_keras_tensor(value) for value in (*args, *kwargs.values())):
            return _operation(function.__name__, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return wrapper


def _is_keras_tensor(x: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(x, keras.KerasTensor)


def _operation(function: str, arguments: dict[str, Any]) -> Any:
    from ._operation import Normalization

    tensors = {name: value for name, value in arguments.items() if _is_keras_tensor(value)}
    constants = {name: value for name, value in arguments.items() if name not in tensors}
    return Normalization(function, constants)(**tensors)
