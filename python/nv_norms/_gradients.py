"""The gradient ops by name, as NVIDIA/atex's nv_norms has them; a GradientTape does not need them.

Formula: with xhat = (x - mean) * inv_std and w = dy * scale,
dx = inv_std * (w - mean(w) - xhat * mean(w * xhat)), dscale = sum(dy * xhat), doffset = sum(dy).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from . import _arguments as check
from ._functions import check_format, default_axis, ops


class Gradients(NamedTuple):
    """What a normalization hands back to its inputs."""

    dx: tf.Tensor
    dscale: tf.Tensor
    doffset: tf.Tensor


def fused_layer_norm_grad_op(
    y_backprop: Any,
    x: Any,
    scale: Any,
    reserve_space_1: Any,
    reserve_space_2: Any,
    axis: int | Sequence[int] | None = None,
    epsilon: float = 0.001,
) -> Gradients:
    """Gradients of fused_layer_norm.

    Args:
      y_backprop: the gradient of y, in x's shape.
      x, scale, axis: as given to fused_layer_norm; scale may be None.
      reserve_space_1, reserve_space_2: mean and inv_std as fused_layer_norm returned them.
      epsilon: not used, inv_std has it.

    Returns:
      dx in x's shape and type, dscale and doffset in the shape of x's axes in `axis`, or [N, ...]
      of these where scale is, and of scale's type.

    Raises:
      ValueError, TypeError: an argument is not as above.
    """
    del epsilon
    x = check.as_input(x)
    check.check_rank(x, 1)
    scales = check.as_parameter(scale, "scale", x)
    axes = check.as_axes(default_axis(x, scales) if axis is None else axis, x)
    own = check.check_layer_parameters(scales, [], x, axes, may_be_own=axis is not None)
    kept = [i for i in range(_rank(x)) if i not in axes]
    given = _statistics(x, reserve_space_1, reserve_space_2)
    statistics = _shaped(given, x, kept, f"axis {axes}")
    return _gradients(
        ops.fused_layer_norm_grad, y_backprop, x, scales, statistics, axis=axes, per_sample=own
    )


def fused_instance_norm_grad_op(
    y_backprop: Any,
    x: Any,
    scale: Any,
    reserve_space_1: Any,
    reserve_space_2: Any,
    data_format: str = "NHWC",
    epsilon: float = 0.001,
) -> Gradients:
    """Gradients of fused_instance_norm.

    Args:
      y_backprop: the gradient of y, in x's shape.
      x, scale, data_format: as given to fused_instance_norm; scale may be None, which is taken for
        one that all examples share.
      reserve_space_1, reserve_space_2: mean and inv_std as fused_instance_norm returned them.
      epsilon: not used, inv_std has it.

    Returns:
      dx in x's shape and type, dscale and doffset of C elements, or [N, C] where scale is, and of
      scale's type.

    Raises:
      ValueError, TypeError: an argument is not as above.
    """
    del epsilon
    x = check.with_checked_rank(check.as_input(x), 3, check_format(data_format))
    scales = check.as_parameter(scale, "scale", x)
    per_sample = check.check_channel_parameters(scales, [], x, data_format)
    statistics = _statistics(x, reserve_space_1, reserve_space_2)
    if x.shape.rank is not None:
        channels = check.channel_axis(data_format) % x.shape.rank
        statistics = _shaped(statistics, x, [0, channels], f"data_format {data_format!r}")
    return _gradients(
        ops.fused_instance_norm_grad,
        y_backprop,
        x,
        scales,
        statistics,
        offset=[],
        data_format=check.as_data_format(data_format),
        per_sample=per_sample,
    )


def _rank(x: tf.Tensor) -> int:
    if x.shape.rank is None:
        raise ValueError("x: expected a known number of axes, got a tensor of unknown rank")
    return x.shape.rank


def _statistics(x: tf.Tensor, mean: Any, rstd: Any) -> dict[str, tf.Tensor]:
    out = {}
    for name, key, value in [("reserve_space_1", "mean", mean), ("reserve_space_2", "rstd", rstd)]:
        out[key] = check.as_input(value, name)
        wanted = check.statistics_type(x)
        if out[key].dtype != wanted:
            raise TypeError(
                f"{name}: expected {wanted.name} for x in {x.dtype.name}, got {out[key].dtype.name}"
            )
    return out


def _shaped(
    statistics: dict[str, tf.Tensor], x: tf.Tensor, axes: list[int], what: str
) -> dict[str, tf.Tensor]:
    """Statistics of as many elements as these axes of x have, in their shape."""
    sizes = [x.shape[i] for i in axes]
    for index, value in enumerate(statistics.values()):
        if None not in sizes and value.shape.num_elements() not in (None, math.prod(sizes)):
            raise ValueError(
                f"reserve_space_{index + 1}: expected {math.prod(sizes)} elements for {what} of x "
                f"of shape {x.shape}, got shape {value.shape}"
            )
    shape = tf.gather(tf.shape(x), axes)
    return {name: tf.reshape(value, shape) for name, value in statistics.items()}


def _gradients(
    op: Any, dy: Any, x: tf.Tensor, scales: list[tf.Tensor], statistics: Any, **attributes: Any
) -> Gradients:
    dy = check.as_input(dy, "y_backprop")
    if not dy.shape.is_compatible_with(x.shape):
        raise ValueError(f"y_backprop: expected x's shape, {x.shape}, got {dy.shape}")
    dx, dscale, doffset = op(
        dy=dy,
        x=x,
        scale=scales,
        num_dx=1,
        num_dscale=1,
        num_doffset=1,
        dx_type=x.dtype,
        param_type=scales[0].dtype if scales else tf.float32,
        **statistics,
        **attributes,
    )
    return Gradients(dx[0], dscale[0], doffset[0])
