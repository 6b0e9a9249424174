"""The functions: arguments checked, one fused op, its outputs. Formulas: see the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from . import _arguments as check
from . import _symbolic
from ._shared import _library

ops = _library.ops()


class Normalized(NamedTuple):
    """A normalization's outputs."""

    y: tf.Tensor
    mean: tf.Tensor
    inv_std: tf.Tensor


class RMSNormalized(NamedTuple):
    """RMS norm's outputs."""

    y: tf.Tensor
    inv_std: tf.Tensor


@_symbolic.takes_keras_tensors
def fused_layer_norm(
    x: Any,
    scale: Any = None,
    offset: Any = None,
    axis: int | Sequence[int] | None = None,
    epsilon: float = 0.001,
) -> Normalized:
    """Layer normalization: y = (x - mean) / sqrt(variance + epsilon) * scale + offset.

    Args:
      x: a tensor of one axis or more, of float16, bfloat16, float32 or float64.
      scale, offset: tensors with one element for each position along `axis` (in the shape of x's
        axes in ascending order, or flat), or None; or, where `axis` is given and names the last
        ones, [N, ...] of these, for each example its own (adaptive norms). Not one of each kind.
      axis: the axis or axes that share a mean and a (biased) variance, in any order. Default: [-1];
        or, where scale has several axes in the shape of x's last ones, those.
      epsilon: added to the variance.

    Returns:
      y, in x's shape and type, and mean and inv_std = 1 / sqrt(variance + epsilon), both [N] with
      one element for each vector that is normalized, in the order of x's other axes, float32
      (float64 for a float64 x). These two are constants to a GradientTape.

    Raises:
      ValueError, TypeError: an argument is not as above; the message says what was expected, and
        what came.
    """
    x, scale, offset, axes, own = _along_axes(x, scale, offset, axis)
    y, mean, rstd = layer_norm_op(x, scale, offset, axes, epsilon, per_sample=own)
    return Normalized(y, _flat(mean), _flat(rstd))


@_symbolic.takes_keras_tensors
def fused_rms_norm(
    x: Any,
    scale: Any = None,
    offset: Any = None,
    axis: int | Sequence[int] | None = None,
    epsilon: float = 1e-6,
) -> RMSNormalized:
    """RMS normalization: y = x / sqrt(mean(x^2) + epsilon) * scale + offset.

    Args:
      x, scale, offset, axis: as for fused_layer_norm.
      epsilon: added to the mean square.

    Returns:
      y, and inv_std = 1 / sqrt(mean(x^2) + epsilon), [N], as for fused_layer_norm.

    Raises:
      ValueError, TypeError: an argument is not as above; the message says what was expected, and
        what came.
    """
    x, scale, offset, axes, own = _along_axes(x, scale, offset, axis)
    y, rstd = rms_norm_op(x, scale, offset, axes, epsilon, per_sample=own)
    return RMSNormalized(y, _flat(rstd))


@_symbolic.takes_keras_tensors
def fused_instance_norm(
    x: Any,
    scale: Any = None,
    offset: Any = None,
    data_format: str = "NHWC",
    epsilon: float = 0.001,
) -> Normalized:
    """Instance normalization: mean and variance of each channel of each example.

    Args:
      x: a float16, bfloat16, float32 or float64 tensor of three axes or more: the first is the
        batch, one the channels.
      scale, offset: tensors of C elements; or [N, C], for each example its own (adaptive norms); or
        None. Not one of each kind.
      data_format: where the channels are: last in "N...C", "NHWC", "NDHWC"; second in "NC...",
        "NCHW", "NCDHW". x may have any number of spatial axes in all of them.
      epsilon: added to the (biased) variance.

    Returns:
      y = (x - mean) * inv_std * scale + offset, in x's shape and type, mean and inv_std, both
      [N, C], float32 (float64 for a float64 x). These two are constants to a GradientTape.

    Raises:
      ValueError, TypeError: an argument is not as above; the message says what was expected, and
        what came.
    """
    x = check.with_checked_rank(check.as_input(x), 3, check_format(data_format))
    scale, offset, own = _of_channels(scale, offset, x, data_format)
    return Normalized(*group_norm_op(x, scale, offset, -1, data_format, epsilon, per_sample=own))


@_symbolic.takes_keras_tensors
def fused_group_norm(
    x: Any,
    scale: Any = None,
    offset: Any = None,
    groups: int = 32,
    data_format: str = "NHWC",
    epsilon: float = 0.001,
) -> Normalized:
    """Group normalization: mean and variance of each group of neighbouring channels.

    Args:
      x: a float16, bfloat16, float32 or float64 tensor of two axes or more: the first is the batch,
        one the channels.
      scale, offset: tensors of C elements; or [N, C], for each example its own (adaptive norms); or
        None. Not one of each kind.
      groups: how many groups of C / groups channels there are; -1: C of them (instance norm).
      data_format: as for fused_instance_norm.
      epsilon: added to the (biased) variance.

    Returns:
      y = (x - mean) * inv_std * scale + offset, in x's shape and type, mean and inv_std, both
      [N, groups], as for fused_instance_norm.

    Raises:
      ValueError, TypeError: an argument is not as above; the message says what was expected, and
        what came.
    """
    x = check.as_input(x)
    check.check_rank(x, 2, check_format(data_format))
    groups = check.check_groups(groups, x, data_format)
    scale, offset, own = _of_channels(scale, offset, x, data_format)
    outputs = group_norm_op(x, scale, offset, groups, data_format, epsilon, per_sample=own)
    return Normalized(*outputs)


def check_format(data_format: Any) -> str:
    check.as_data_format(data_format)
    return data_format


def layer_norm_op(
    x: tf.Tensor,
    scale: list[tf.Tensor],
    offset: list[tf.Tensor],
    axes: list[int],
    epsilon: float,
    out_type: tf.DType | None = None,
    subtract_mean: bool = True,
    per_sample: bool = False,
) -> Any:
    """FusedLayerNorm; arguments checked already. out_type: y's, by default x's."""
    common = _common(x, scale, offset, epsilon, out_type)
    return ops.fused_layer_norm(
        **common, axis=axes, subtract_mean=subtract_mean, per_sample=per_sample
    )


def rms_norm_op(
    x: tf.Tensor,
    scale: list[tf.Tensor],
    offset: list[tf.Tensor],
    axes: list[int],
    epsilon: float,
    out_type: tf.DType | None = None,
    per_sample: bool = False,
) -> Any:
    """FusedRMSNorm; arguments checked already."""
    common = _common(x, scale, offset, epsilon, out_type)
    return ops.fused_rms_norm(**common, axis=axes, per_sample=per_sample)


def group_norm_op(
    x: tf.Tensor,
    scale: list[tf.Tensor],
    offset: list[tf.Tensor],
    groups: int,
    data_format: str,
    epsilon: float,
    out_type: tf.DType | None = None,
    per_sample: bool = False,
) -> Any:
    """FusedGroupNorm, or FusedInstanceNorm for groups = -1; arguments checked already."""
    common = _common(x, scale, offset, epsilon, out_type)
    common |= {"data_format": check.as_data_format(data_format), "per_sample": per_sample}
    if groups == -1:
        return ops.fused_instance_norm(**common)
    return ops.fused_group_norm(**common, groups=groups)


def _common(
    x: tf.Tensor,
    scale: list[tf.Tensor],
    offset: list[tf.Tensor],
    epsilon: float,
    out_type: tf.DType | None,
) -> dict[str, Any]:
    return {
        "x": x,
        "scale": scale,
        "offset": offset,
        "out_type": out_type or x.dtype,
        "U": check.statistics_type(x),
        **check.epsilon_attributes(epsilon),
    }


def _parameters(scale: Any, offset: Any, x: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    scales = check.as_parameter(scale, "scale", x)
    offsets = check.as_parameter(offset, "offset", x)
    check.check_same_type(scales, offsets)
    return scales, offsets


def _along_axes(
    x: Any, scale: Any, offset: Any, axis: int | Sequence[int] | None
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor], list[int], bool]:
    """The arguments of a layer or RMS norm, checked, its axes, and whether each example has a scale
    and an offset of its own. Without `axis`, a scale of two axes says which are normalized."""
    x = check.as_input(x)
    check.check_rank(x, 1)
    scale, offset = _parameters(scale, offset, x)
    axes = check.as_axes(default_axis(x, scale) if axis is None else axis, x)
    own = check.check_layer_parameters(scale, offset, x, axes, may_be_own=axis is not None)
    return x, scale, offset, axes, own


def _of_channels(
    scale: Any, offset: Any, x: tf.Tensor, data_format: str
) -> tuple[list[tf.Tensor], list[tf.Tensor], bool]:
    """Scale and offset, checked, and whether each example has its own."""
    scales, offsets = _parameters(scale, offset, x)
    return scales, offsets, check.check_channel_parameters(scales, offsets, x, data_format)


def default_axis(x: tf.Tensor, scale: list[tf.Tensor]) -> list[int]:
    """[-1], or the axes of a scale that has the shape of x's last ones."""
    if scale and x.shape.rank is not None and scale[0].shape.is_fully_defined():
        rank = scale[0].shape.rank
        if 1 < rank <= x.shape.rank and x.shape[-rank:].is_compatible_with(scale[0].shape):
            return list(range(-rank, 0))
    return [-1]


def _flat(statistic: tf.Tensor) -> tf.Tensor:
    return statistic if statistic.shape.rank == 1 else tf.reshape(statistic, [-1])
