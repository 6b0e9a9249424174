"""Checks of arguments: each error says what was expected and what came, as soon as it is known."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_MOST_AXES = 254  # that a tensor can have
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

# NVIDIA/atex's nv_norms reads no more from a format than where the channels are.
_DATA_FORMATS = {
    "N...C": "N...C",
    "NHWC": "N...C",
    "NDHWC": "N...C",
    "NC...": "NC...",
    "NCHW": "NC...",
    "NCDHW": "NC...",
}


def as_dense(value: Any, name: str = "x") -> tf.Tensor:
    """`value` as a tensor of whatever type it has."""
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected a dense tensor, or numbers that make one, got {described(value)}"
        ) from error


def check_not_composite(value: Any, name: str) -> None:
    """For those that need a dense tensor's shape before they need the tensor."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"{name}: expected a dense tensor, got {described(value)}")


def described(value: Any) -> str:
    """What came, in a few words."""
    kind = type(value).__name__
    if hasattr(value, "shape"):
        return f"{kind} of shape {value.shape}"
    return "None" if value is None else f"{kind} {reprlib.repr(value)}"


def as_input(value: Any, name: str = "x") -> tf.Tensor:
    """`value` as a tensor of a type that can be normalized."""
    tensor = as_dense(value, name)
    if tensor.dtype not in FLOATS:
        raise TypeError(
            f"{name}: expected float16, bfloat16, float32 or float64, got {tensor.dtype.name}"
        )
    return tensor


def as_parameter(value: Any, name: str, x: tf.Tensor) -> list[tf.Tensor]:
    """Scale or offset as the ops take it: a list of one tensor, or of none.

    What has no TensorFlow type of its own (a NumPy array, a list) becomes float32, or float64 if x
    is float64.
    """
    if value is None:
        return []
    if hasattr(value, "dtype") and not hasattr(value, "__array_interface__"):
        tensor = as_input(value, name)
    else:
        wanted = tf.float64 if x.dtype == tf.float64 else tf.float32
        given = as_dense(value, name)
        if not is_real(given.dtype):
            raise TypeError(f"{name}: expected real numbers, got {given.dtype.name}")
        tensor = tf.cast(given, wanted)
    return [tensor]


def is_real(dtype: tf.DType) -> bool:
    """Whether a cast to a float keeps what is meant: integers and booleans, too."""
    return dtype.is_floating or dtype.is_integer or dtype.is_bool


def check_same_type(scale: list[tf.Tensor], offset: list[tf.Tensor]) -> None:
    """The ops have one type for both."""
    if scale and offset and scale[0].dtype != offset[0].dtype:
        raise TypeError(
            "scale and offset: expected one dtype for both, got "
            f"{scale[0].dtype.name} and {offset[0].dtype.name}"
        )


def statistics_type(x: tf.Tensor) -> tf.DType:
    return tf.float64 if x.dtype == tf.float64 else tf.float32


def epsilon_attributes(epsilon: Any) -> dict[str, float]:
    """A float64 as the sum of two float32 attributes.

    TensorFlow's threads take subnormal numbers for 0. Where the second is one, that costs epsilon
    1.2e-38 at most; the first must not be one.
    """
    try:
        value = math.nan if isinstance(epsilon, (bool, str, bytes)) else float(epsilon)
    except (TypeError, ValueError, OverflowError, AttributeError):
        value = math.nan
    if tf.is_tensor(epsilon) or not 0 <= value < math.inf:
        raise ValueError(f"epsilon: expected a finite Python number >= 0, got {epsilon!r}")
    if value and not _LEAST <= value <= _MOST:
        raise ValueError(
            f"epsilon: expected 0, or a number from {_LEAST} to {_MOST} (the normal numbers of "
            f"float32), got {epsilon!r}"
        )
    high = float(np.float32(value))
    return {"epsilon": high, "epsilon_low": float(np.float32(value - high))}


def as_axes(axis: Any, x: tf.Tensor) -> list[int]:
    """Distinct axes of x, ascending from 0 where x's rank is known."""
    axes = integers(axis)
    return axes if x.shape.rank is None else resolve_axes(axes, x.shape)


def integers(axis: Any) -> list[int]:
    """One axis or several, as they were given."""
    try:
        axes = [as_integer(a) for a in (axis if _is_sequence(axis) else [axis])]
    except TypeError:
        raise TypeError(f"axis: expected an integer or several, got {axis!r}") from None
    if not axes:
        raise ValueError("axis: expected at least one axis, got none")
    if not all(-_MOST_AXES <= a < _MOST_AXES for a in axes):
        raise ValueError(f"axis: expected integers of at most {_MOST_AXES - 1}, got {axis!r}")
    return axes


def as_integer(value: Any) -> int:
    """TypeError for what is none, of which True is."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except AttributeError:  # by a tensor of floats
        number = None
    if number is None:
        raise TypeError(f"expected an integer, got {value!r}")
    return number


def resolve_axes(axes: list[int], shape: Any) -> list[int]:
    """`axes` from 0 on, ascending."""
    rank = len(shape)
    if rank == 0:
        raise ValueError(f"x: expected at least 1 axis, got shape {shape}")
    resolved = sorted(a + rank if a < 0 else a for a in axes)
    if len(set(resolved)) < len(resolved) or resolved[0] < 0 or resolved[-1] >= rank:
        raise ValueError(
            f"axis: expected distinct integers from {-rank} to {rank - 1} for x of shape {shape}, "
            f"got {axes}"
        )
    return resolved


def _is_sequence(axis: Any) -> bool:
    if isinstance(axis, np.ndarray):
        return axis.ndim > 0
    return isinstance(axis, Sequence) and not isinstance(axis, str)


def check_layer_parameters(
    scale: list[tf.Tensor],
    offset: list[tf.Tensor],
    x: tf.Tensor,
    axes: list[int],
    may_be_own: bool,
) -> bool:
    """One element for each position along `axes`: in their shape, or flat, axes of size 1 aside;
    or, where they may be an example's own (then True comes back), these for each example. Of those
    there are ops for the last axes only."""
    if x.shape.rank is None:
        return False
    sizes = [x.shape[a] for a in axes]
    last = axes == list(range(x.shape.rank - len(axes), x.shape.rank)) and axes[0] > 0
    shapes = f"{tuple(sizes)}", f"({', '.join(['N', *map(str, sizes)])})"
    what = f"axis {axes} of x of shape {x.shape}"
    return _check_parameters(scale, offset, x, sizes, may_be_own and last, shapes, what)


def check_channel_parameters(
    scale: list[tf.Tensor], offset: list[tf.Tensor], x: tf.Tensor, data_format: str
) -> bool:
    """One element for each channel, or, then True comes back, for each channel of each example."""
    if x.shape.rank is None:
        return False
    channels = x.shape[channel_axis(data_format)]
    what = f"the channels of x of shape {x.shape} in {data_format!r}"
    return _check_parameters(scale, offset, x, [channels], True, ("[C]", "[N, C]"), what)


def _check_parameters(
    scale: list[tf.Tensor],
    offset: list[tf.Tensor],
    x: tf.Tensor,
    sizes: list[int | None],
    may_be_own: bool,
    shapes: tuple[str, str],
    what: str,
) -> bool:
    """Whether each example has parameters of its own, of these sizes; `shapes` and `what`: how an
    error names the two ways, and what the sizes are those of."""
    given = {name: p[0] for name, p in (("scale", scale), ("offset", offset)) if p}
    own = [may_be_own and _is_of_each_example(p, sizes) for p in given.values()]
    if any(own) and not all(own):
        raise ValueError(
            f"scale and offset: expected both of shape {shapes[0]} or both {shapes[1]}, "
            f"got {scale[0].shape} and {offset[0].shape}"
        )
    per_sample = any(own)
    of_each = [x.shape[0], *sizes] if per_sample else None
    for name, parameter in given.items():
        _check_shape(parameter, name, sizes, of_each, what)
    return per_sample


def _is_of_each_example(parameter: tf.Tensor, sizes: list[int | None]) -> bool:
    """Whether its shape is [N, *sizes], not [1, *sizes], which is the same for all."""
    shape = parameter.shape
    if shape.rank != 1 + len(sizes) or shape[0] == 1 or None in sizes:
        return False
    return shape[1:].as_list() == sizes


def _check_shape(
    parameter: tf.Tensor,
    name: str,
    sizes: list[int | None],
    of_each: list[int | None] | None,
    what: str,
) -> None:
    shape = parameter.shape
    expected = of_each or sizes
    if None in expected or not shape.is_fully_defined():
        return
    flat = [math.prod(sizes)]
    accepted = [of_each] if of_each else [sizes, flat]
    if _without_ones(shape) not in [_without_ones(each) for each in accepted]:
        wanted = f"{tuple(sizes)}" if len(sizes) == 1 else f"{tuple(sizes)} or {tuple(flat)}"
        wanted += f", or {tuple(of_each)} for each example its own," if of_each else ""
        raise ValueError(f"{name}: expected shape {wanted} for {what}, got {tuple(shape)}")


def _without_ones(shape: Any) -> list[int]:
    return [size for size in shape if size != 1]


def as_data_format(data_format: Any) -> str:
    """ "N...C" or "NC...", as the ops know it."""
    known = _DATA_FORMATS.get(data_format) if isinstance(data_format, str) else None
    if known is None:
        raise ValueError(
            f"data_format: expected one of {', '.join(map(repr, _DATA_FORMATS))}, "
            f"got {data_format!r}"
        )
    return known


def channel_axis(data_format: str) -> int:
    return -1 if as_data_format(data_format) == "N...C" else 1


def check_rank(x: tf.Tensor, least: int, data_format: str | None = None) -> None:
    rank = x.shape.rank
    if rank is not None and rank < least:
        raise ValueError(f"{_axes_expected(least, data_format)}, got shape {x.shape}")


def with_checked_rank(x: tf.Tensor, least: int, data_format: str) -> tf.Tensor:
    """x, its rank checked now or, where it is not known yet, when the graph runs.

    The ops cannot do that: their instance norm takes [N, C], as Keras' GroupNormalization does.
    """
    check_rank(x, least, data_format)
    if x.shape.rank is not None:
        return x
    message = [f"{_axes_expected(least, data_format)}, got shape", tf.shape(x)]
    with tf.control_dependencies([tf.debugging.Assert(tf.rank(x) >= least, message)]):
        # XLA drops assertions, but fails at a node of this name.
        name = f"x_has_at_least_{least}_axes"
        last = tf.strided_slice(tf.shape(x), [least - 1], [least], shrink_axis_mask=1, name=name)
    with tf.control_dependencies([last]):
        return tf.identity(x)


def _axes_expected(least: int, data_format: str | None) -> str:
    axes = "1 axis" if least == 1 else f"{least} axes"
    layout = "" if data_format is None else f" (data_format {data_format!r})"
    return f"x: expected at least {axes}{layout}"


def check_groups(groups: Any, x: tf.Tensor, data_format: str) -> int:
    """The number of groups, -1 for one channel each; it divides the number of channels."""
    try:
        number = as_integer(groups)
    except TypeError:
        raise TypeError(f"groups: expected an integer, got {groups!r}") from None
    if not (1 <= number < 2**63 or number == -1):
        raise ValueError(f"groups: expected a positive integer, or -1 for all, got {number}")
    if x.shape.rank is not None:
        check_divisor(number, x.shape, channel_axis(data_format), repr(data_format))
    return number


def check_divisor(groups: int, shape: Any, axis: int, layout: str) -> None:
    """Of the channels, if it is a number of groups, and where these are known."""
    channels = shape[axis]
    if groups > 0 and channels is not None and channels % groups:
        raise ValueError(
            f"groups: expected a divisor of {channels}, the number of channels of x of shape "
            f"{tuple(shape)} in {layout}, got {groups}"
        )
