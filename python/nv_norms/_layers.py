"""Keras layers that run one fused op each: drop-in for Keras' layers of the same names.

Arguments, weights, names, config and results are those of Keras; only call() differs. Weights move
freely between a layer of Keras and ours (set_weights, .weights.h5). Formulas: see _functions.py.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from . import _arguments as check
from ._functions import group_norm_op, layer_norm_op, rms_norm_op

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "nv_norms' layers run TensorFlow ops: expected Keras' backend to be 'tensorflow', got "
        f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before Keras is imported."
    )

_serializable = keras.saving.register_keras_serializable(package="nv_norms")


class _Checked:
    """Says what is wrong with inputs and axes before build() fails on them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            check.check_not_composite(value, "inputs")
        if args and args[0] is None:
            raise TypeError("inputs: expected a dense tensor, got None")
        return super().__call__(*args, **kwargs)

    def build(self, input_shape: Any) -> None:
        check.resolve_axes(check.integers(self.axis), input_shape)
        super().build(input_shape)

    def _as_input(self, inputs: Any) -> tf.Tensor:
        """`inputs` as the ops take it: integers and booleans in the type of statistics.

        Keras computes so, too, but casts the result to their type, which cuts off its fractions.
        """
        x = check.as_dense(inputs, "inputs")
        if x.dtype not in check.FLOATS and check.is_real(x.dtype):
            x = tf.cast(x, tf.float64 if self.compute_dtype == "float64" else tf.float32)
        return check.as_input(x, "inputs")


@_serializable
class LayerNormalization(_Checked, keras.layers.LayerNormalization):
    """keras.layers.LayerNormalization in one op, forward and backward.

    Takes the same arguments: axis (-1), epsilon (1e-3), center and scale (True), the initializers,
    regularizers and constraints of gamma and beta. Any axes, in any order, and types; under a mixed
    policy x is read in its own type, statistics are float32 and the result has the compute type.
    gamma and beta have the axes of x in ascending order, also where positive and negative axes are
    mixed (Keras before 3.16 sorts [1, -1] as numbers, tf_keras and later Keras as we do).
    """

    def build(self, input_shape: Any) -> None:
        axis = self.axis
        if not isinstance(axis, list):
            return super().build(input_shape)
        self.axis = check.resolve_axes(check.integers(axis), input_shape)
        super().build(input_shape)
        self.axis = sorted(axis)  # as Keras leaves them to get_config()

    def call(self, inputs: Any) -> tf.Tensor:
        x = self._as_input(inputs)
        y, _, _ = layer_norm_op(
            x,
            check.as_parameter(self.gamma, "gamma", x),
            check.as_parameter(self.beta, "beta", x),
            check.as_axes(self.axis, x),
            self.epsilon,
            out_type=tf.as_dtype(self.compute_dtype),
            subtract_mean=not self.rms_scaling,
        )
        return y


@_serializable
class GroupNormalization(_Checked, keras.layers.GroupNormalization):
    """keras.layers.GroupNormalization in one op, forward and backward.

    Takes the same arguments: groups (32; -1 for one per channel), axis (-1), epsilon (1e-3), center
    and scale (True), the initializers, regularizers and constraints of gamma and beta. With the
    channels neither last nor second, or no batch, it computes as Keras does.
    """

    def build(self, input_shape: Any) -> None:
        try:
            axis = check.as_integer(self.axis)
        except TypeError:
            raise TypeError(
                f"axis: expected an integer, the axis of the channels, got {self.axis!r}"
            ) from None
        check.resolve_axes([axis], input_shape)
        check.check_divisor(self.groups, input_shape, axis, f"axis {axis}")
        super().build(input_shape)

    def call(self, inputs: Any) -> tf.Tensor:
        x = self._as_input(inputs)
        rank = x.shape.rank  # input_spec holds it
        axis = self.axis % rank
        if rank < 2 or axis not in (1, rank - 1):
            return super().call(inputs)
        y, _, _ = group_norm_op(
            x,
            check.as_parameter(self.gamma, "gamma", x),
            check.as_parameter(self.beta, "beta", x),
            -1 if self.groups == x.shape[axis] else self.groups,
            "NC..." if axis == 1 else "N...C",
            self.epsilon,
            out_type=tf.as_dtype(self.compute_dtype),
        )
        return y


@_serializable
class InstanceNormalization(GroupNormalization):
    """Instance normalization: GroupNormalization with one channel to a group.

    Takes the arguments of tensorflow-addons' layer of this name: axis (of the channels, -1),
    epsilon (1e-3), center and scale (True), the initializers, regularizers and constraints of gamma
    and beta. `groups` is accepted, as there, and means nothing.
    """

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        kwargs.pop("groups", None)
        super().__init__(groups=-1, axis=axis, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["groups"]  # build() puts the number of channels there
        return config


@_serializable
class RMSNormalization(_Checked, keras.layers.RMSNormalization):
    """keras.layers.RMSNormalization in one op, forward and backward.

    Takes the same arguments: axis (-1), epsilon (1e-6). As in Keras, scale is multiplied along the
    last axes, whichever `axis` names.
    """

    def call(self, x: Any) -> tf.Tensor:
        given = check.as_dense(x, "inputs")
        y_type = given.dtype if given.dtype in check.FLOATS else tf.as_dtype(self.compute_dtype)
        x = self._as_input(given)
        axes = check.as_axes(self.axis, x)
        rank = x.shape.rank
        trailing = rank is None or axes == list(range(rank - len(axes), rank))
        scale = check.as_parameter(self.scale, "scale", x)
        if trailing:
            return rms_norm_op(x, scale, [], axes, self.epsilon, out_type=y_type).y
        y = rms_norm_op(x, [], [], axes, self.epsilon, out_type=check.statistics_type(x)).y
        return tf.cast(y * tf.cast(scale[0], y.dtype), y_type)
