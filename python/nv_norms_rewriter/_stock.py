"""The fused ops' formulas in TensorFlow's own ops: for second derivatives and for SavedModels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Tensor = Any

# The attributes of each op that say what it computes, but for epsilon.
ATTRIBUTES = {
    "FusedLayerNorm": ("axis", "subtract_mean", "per_sample"),
    "FusedRMSNorm": ("axis", "per_sample"),
    "FusedInstanceNorm": ("data_format", "negative_slope", "silu", "per_sample"),
    "FusedGroupNorm": ("data_format", "groups", "negative_slope", "silu", "per_sample"),
}


def forward(
    op: str,
    x: Tensor,
    scale: Sequence[Tensor],
    offset: Sequence[Tensor],
    *,
    out_type: Any,
    epsilon: float | None = None,
    rstd: Tensor | None = None,
    **attributes: Any,
) -> list[Tensor]:
    """What the fused op computes: y, mean and rstd, without mean for FusedRMSNorm.

    Statistics in float32, float64 for float64 x.

    Args:
      op: "FusedLayerNorm", ...
      x: a tensor; neither its shape nor its rank need be known.
      scale, offset: at most one tensor each.
      out_type: of y.
      epsilon: is added to the moment under the root. None: what it was when rstd was computed.
      rstd: only without epsilon: the value that comes out, as a function of x.
      attributes: of the op, those in ATTRIBUTES.
    """
    stat_type = tf.float64 if x.dtype == tf.float64 else tf.float32
    if attributes.get("per_sample", False):
        x = _with_all_samples(op, x, [*scale, *offset], attributes)
    layout = _layout(op, tf.cast(x, stat_type), attributes)
    values = layout.values
    mean = tf.reduce_mean(values, layout.axes, keepdims=True)
    if op == "FusedRMSNorm":
        moment = tf.reduce_mean(tf.square(values), layout.axes, keepdims=True)
    else:
        moment = tf.reduce_mean(
            tf.math.squared_difference(values, mean), layout.axes, keepdims=True
        )
    if epsilon is None:
        given = tf.reshape(tf.cast(rstd, stat_type), tf.shape(moment))
        added = tf.stop_gradient(1.0 / tf.square(given) - moment)
    else:
        added = tf.constant(epsilon, stat_type)
    root = tf.math.rsqrt(moment + added)
    centred = op != "FusedRMSNorm" and attributes.get("subtract_mean", True)
    y = (values - mean if centred else values) * root
    for gamma in scale:
        y *= layout.param(tf.cast(gamma, stat_type))
    for beta in offset:
        y += layout.param(tf.cast(beta, stat_type))
    y = _activated(y, attributes.get("negative_slope", 1.0), attributes.get("silu", False))
    y = tf.cast(tf.reshape(y, tf.shape(x)), out_type)
    y.set_shape(x.shape)
    statistics = [root] if op == "FusedRMSNorm" else [mean, root]
    return [y, *map(layout.stat, statistics)]


def gradient(
    op: str,
    dy: Tensor,
    x: Tensor,
    scale: Sequence[Tensor],
    rstd: Tensor,
    offset: Sequence[Tensor] = (),
    *,
    num_offset: int,
    dx_type: Any,
    param_type: Any,
    **attributes: Any,
) -> list[Tensor]:
    """What the fused gradient op of `op` computes: dx, dscale if there is a scale, doffset if
    num_offset is 1.

    By differentiating forward(); it can be differentiated again, with respect to dy, x and scale.
    offset: at most one tensor; only an activation's gradient depends on it.
    """
    stat_type = tf.float64 if x.dtype == tf.float64 else tf.float32
    per_sample = attributes.get("per_sample", False)
    layout = _layout(op, dy if per_sample else x, attributes)
    if per_sample:
        # As dscale and doffset are. What broadcasts x in forward() sums dx.
        shape = layout.param_shape()
        scale, offset = ([_repeated(p, shape) for p in params] for params in (scale, offset))

    def y_of(x: Tensor, *params: Tensor) -> list[Tensor]:
        scales, offsets = params[: len(scale)], params[len(scale) :] or offset
        return forward(op, x, scales, offsets, out_type=stat_type, rstd=rstd, **attributes)[:1]

    given = [tf.cast(tensor, stat_type) for tensor in (x, *scale)]
    zeros = tf.zeros(layout.param_shape(), stat_type)
    given += [tf.cast(beta, stat_type) for beta in offset or [zeros]][:num_offset]
    dx, *params = differentiate(y_of, given, [tf.cast(dy, stat_type)])
    params = [tf.reshape(tf.cast(d, param_type), layout.param_shape()) for d in params]
    return [tf.cast(dx, dx_type), *params]


def differentiate(
    function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], dys: Sequence[Tensor | None]
) -> list[Tensor]:
    """The gradients of the outputs of `function` with respect to `inputs`, under dys (None: 0)."""
    inputs = [tf.identity(tensor) for tensor in inputs]
    if tf.executing_eagerly():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs)
    else:  # tapes may be told not to record where TensorFlow builds a gradient
        outputs = function(*inputs)
    pairs = [(y, dy) for y, dy in zip(outputs, dys, strict=True) if dy is not None]
    outputs, dys = [y for y, _ in pairs], [dy for _, dy in pairs]
    zero = tf.UnconnectedGradients.ZERO
    if tf.executing_eagerly():
        return tape.gradient(outputs, inputs, output_gradients=dys, unconnected_gradients=zero)
    return tf.gradients(outputs, inputs, grad_ys=dys, unconnected_gradients=zero)


def has_activation(attributes: dict[str, Any]) -> bool:
    """Whether an activation follows the norm in an op with such attributes."""
    return attributes.get("negative_slope", 1.0) != 1.0 or attributes.get("silu", False)


def _activated(t: Tensor, negative_slope: float, silu: bool) -> Tensor:
    """A leaky relu (1.0: none, 0.0: relu), or silu."""
    if silu:
        return t * tf.sigmoid(t)
    if negative_slope == 1.0:
        return t
    if negative_slope == 0.0:
        return tf.nn.relu(t)
    return tf.nn.leaky_relu(t, negative_slope)


def shape_of_own(param: Tensor, of_sample: Tensor) -> Tensor:
    """[N, *of_sample], of each sample's parameter; N: how many `param` is for, of none one."""
    of_each = tf.reduce_prod(of_sample)
    samples = tf.where(of_each > 0, tf.size(param) // tf.maximum(of_each, 1), 1)
    return tf.concat([[samples], of_sample], 0)


def _with_all_samples(
    op: str, x: Tensor, params: Sequence[Tensor], attributes: dict[str, Any]
) -> Tensor:
    """x, of one sample perhaps, with as many as the parameters have."""
    shape = tf.shape(x)
    of_sample = _layout(op, x, attributes).param_shape()[1:]
    samples = shape[:1]
    for param in params:
        samples = tf.broadcast_dynamic_shape(samples, shape_of_own(param, of_sample)[:1])
    repeated = tf.broadcast_to(x, tf.concat([samples, shape[1:]], 0))
    if x.shape.rank is not None:
        one = x.shape[0] in (None, 1)
        repeated.set_shape([None if one else x.shape[0], *x.shape[1:]])
    return repeated


def _repeated(param: Tensor, shape: Tensor) -> Tensor:
    """A parameter of each sample, or of all, in the shape [N, ...]."""
    return tf.broadcast_to(tf.reshape(param, shape_of_own(param, shape[1:])), shape)


def _layout(op: str, x: Tensor, attributes: dict[str, Any]) -> _Axes | _Channels:
    per_sample = attributes.get("per_sample", False)
    if op in ("FusedInstanceNorm", "FusedGroupNorm"):
        last = attributes.get("data_format", "N...C") == "N...C"
        return _Channels(x, last, attributes.get("groups", -1), per_sample)
    return _Axes(x, list(attributes.get("axis", (-1,))), per_sample)


class _Axes:
    """Layer and RMS norm: statistics over `axes`, a parameter for each of their elements.

    Of each sample if per_sample, where the axes are the last.
    """

    def __init__(self, x: Tensor, axes: list[int], per_sample: bool) -> None:
        self.values = x
        self.axes = axes
        self._shape = tf.shape(x)
        counted = tf.math.floormod(tf.constant(axes, tf.int32), tf.rank(x))
        self._ascending = tf.sort(counted) if len(axes) > 1 else counted
        self._normalized = tf.reduce_any(
            tf.equal(tf.range(tf.rank(x))[:, tf.newaxis], counted[tf.newaxis]), 1
        )

        self._per_sample = per_sample

    def param(self, value: Tensor) -> Tensor:
        shape = tf.where(self._normalized, self._shape, 1)
        if self._per_sample:
            value = _repeated(value, self.param_shape())
            shape = tf.concat([self._shape[:1], shape[1:]], 0)
        return tf.reshape(value, shape)

    def param_shape(self) -> Tensor:
        of_sample = tf.gather(self._shape, self._ascending)
        return tf.concat([self._shape[:1], of_sample], 0) if self._per_sample else of_sample

    def stat(self, value: Tensor) -> Tensor:
        return tf.squeeze(value, self.axes)


class _Channels:
    """Instance and group norm: statistics over all positions and the channels of one group.

    A parameter for each channel, of each sample if per_sample.
    """

    def __init__(self, x: Tensor, last: bool, groups: int, per_sample: bool) -> None:
        shape = tf.shape(x)
        batch, channels = shape[0], shape[-1 if last else 1]
        self._groups = channels if groups < 0 else groups
        split = [self._groups, 1 if groups < 0 else channels // groups]
        positions = tf.reduce_prod(shape[1:-1] if last else shape[2:])
        self._per_sample = per_sample
        self._param = [1, *split] if last else [*split, 1]
        self._param_shape = tf.stack([batch, channels] if per_sample else [channels])
        self._stat = [batch, self._groups]
        self.axes = [1, 3] if last else [2, 3]
        middle = [positions, *split] if last else [*split, positions]
        self.values = tf.reshape(x, [batch, *middle])

    def param(self, value: Tensor) -> Tensor:
        if self._per_sample:
            value = _repeated(value, self._param_shape)
        samples = self._param_shape[0] if self._per_sample else 1
        return tf.reshape(value, [samples, *self._param])

    def param_shape(self) -> Tensor:
        return self._param_shape

    def stat(self, value: Tensor) -> Tensor:
        return tf.reshape(value, self._stat)
