"""What the table's functions are made with: variables and layers with reproducible values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .line import Line, compute_dtype, variable_dtype
from .values import draw_parameter


class Builder:
    """Makes the variables and layers of one case under one policy, from one seed.

    Built twice from the same seed, also under another policy, the values are the same (rounded to
    the type), so that a float64 build is the reference of a float16 one.
    """

    def __init__(self, line: Line, policy: str, seed: int) -> None:
        self.line = line
        self.policy = policy
        self.dtype = tf.as_dtype(compute_dtype(policy))
        self.rng = np.random.default_rng(seed + 1)
        self.shapes = [spec.shape for spec in line.inputs]
        self.parameters: dict[str, np.ndarray] = {}
        self.variables: list = []

    def parameter(self, name: str, shape: tuple[int, ...]) -> tf.Variable:
        """A trainable variable in the policy's variable type."""
        value = self._value(name, shape)
        variable = tf.Variable(tf.cast(value, variable_dtype(self.policy)), name=name)
        self.variables.append(variable)
        return variable

    def value(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A random array, for constants of the graph."""
        return self._value(name, shape)

    def layer(self, make: Callable, *shapes, **kwargs):
        """A Keras layer under the policy, built for the inputs' shapes, with random weights."""
        layer = make(dtype=self.policy, **kwargs)
        layer.build(*(shapes or self.shapes[:1]))
        self.randomize(layer)
        return layer

    def model(self, make: Callable[[], object]):
        """A Keras model made under the policy as the global one, with random weights."""
        import keras

        before, floatx = keras.config.dtype_policy(), keras.config.floatx()
        keras.config.set_dtype_policy(self.policy)
        keras.config.set_floatx(variable_dtype(self.policy))
        try:
            model = make()
        finally:
            keras.config.set_dtype_policy(before)
            keras.config.set_floatx(floatx)
        self.randomize(model)
        return model

    def randomize(self, layer) -> None:
        for weight in layer.weights:
            name = getattr(weight, "path", weight.name).split(":")[0]
            dtype = np.dtype(getattr(weight.dtype, "as_numpy_dtype", weight.dtype))
            if dtype.kind in "iub":
                continue
            value = self._value(name, tuple(weight.shape))
            weight.assign(tf.cast(value, weight.dtype))
            self.variables.append(weight if isinstance(weight, tf.Variable) else weight.value)

    def _value(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        value = draw_parameter(self.rng, shape, name, self.line.fine_parameters)
        leaf = name.rsplit("/", 1)[-1]
        self.parameters[leaf] = value
        return value
