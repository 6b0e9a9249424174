"""The operation that a Keras model has for a call of one of the functions on symbolic tensors."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from . import _functions
from ._arguments import described

_FUNCTIONS = {
    function.__name__: function
    for function in (
        _functions.fused_group_norm,
        _functions.fused_instance_norm,
        _functions.fused_layer_norm,
        _functions.fused_rms_norm,
    )
}


@keras.saving.register_keras_serializable(package="nv_norms")
class Normalization(keras.Operation):
    """A function of this package, called on tensors by the names of its arguments.

    Args:
      function: its name.
      constants: its other arguments, by name. A model can be saved where they are numbers, text,
        lists of these, arrays, or tensors that have a value.
      name: the operation's; by default made from the function's.

    get_config() raises TypeError for other constants. Variables are among these: as with any
    operation of Keras, those that it is given are not the model's.
    """

    def __init__(
        self, function: str, constants: dict[str, Any] | None = None, name: str | None = None
    ) -> None:
        if function not in _FUNCTIONS:
            raise ValueError(f"function: expected one of {', '.join(_FUNCTIONS)}, got {function!r}")
        super().__init__(name=name or keras.src.utils.naming.auto_name(function))
        self.function = function
        self.constants = dict(constants or {})

    def call(self, **tensors: Any) -> Any:
        return _FUNCTIONS[self.function](**tensors, **self.constants)

    def compute_output_spec(self, **tensors: Any) -> Any:
        return keras.src.backend.compute_output_spec(self.call, **tensors)

    def get_config(self) -> dict[str, Any]:
        constants = {name: _serialized(name, value) for name, value in self.constants.items()}
        return {"name": self.name, "function": self.function, "constants": constants}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Normalization:
        constants = {
            name: keras.saving.deserialize_keras_object(value)
            for name, value in config["constants"].items()
        }
        return cls(config["function"], constants, config["name"])


def _serialized(name: str, value: Any) -> Any:
    if not isinstance(value, (tf.Variable, keras.Variable)):
        try:
            return keras.saving.serialize_keras_object(value)
        except (AttributeError, NotImplementedError, TypeError):
            pass  # a tensor of a graph, or nothing that Keras knows
    raise TypeError(
        f"{name}: expected numbers, an array or a constant tensor in a model that is saved, got "
        f"{described(value)}. Variables are saved with the model where they are those of a layer "
        "(nv_norms.LayerNormalization, ...)"
    )
