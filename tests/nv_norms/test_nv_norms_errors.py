"""Bad arguments: an error that names the argument, what was expected and what came, while tracing.

Each case is also traced without being run: its shapes are known, so tracing has to complain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import nv_norms

X = tf.zeros((2, 3, 4, 6))
C = np.ones(6, np.float32)
layer, rms = nv_norms.fused_layer_norm, nv_norms.fused_rms_norm
instance, group = nv_norms.fused_instance_norm, nv_norms.fused_group_norm
FORMATS = "'N...C', 'NHWC', 'NDHWC', 'NC...', 'NCHW', 'NCDHW'"

BAD: dict[str, tuple[Callable[[tf.Tensor], Any], type[Exception], str]] = {
    "integer x": (
        lambda x: layer(tf.cast(x, tf.int32)),
        TypeError,
        "x: expected float16, bfloat16, float32 or float64, got int32",
    ),
    "complex x": (lambda x: rms(tf.cast(x, tf.complex64)), TypeError, "got complex64"),
    "string x": (lambda x: instance(tf.constant(["a"])), TypeError, "got string"),
    "axis too large": (
        lambda x: layer(x, axis=4),
        ValueError,
        "axis: expected distinct integers from -4 to 3 for x of shape (2, 3, 4, 6), got [4]",
    ),
    "axis too small": (lambda x: rms(x, axis=[-5]), ValueError, "got [-5]"),
    "axis twice": (lambda x: layer(x, axis=[3, -1]), ValueError, "expected distinct integers"),
    "no axis": (lambda x: layer(x, axis=[]), ValueError, "expected at least one axis, got none"),
    "axis 1.5": (
        lambda x: layer(x, axis=1.5),
        TypeError,
        "expected an integer or several, got 1.5",
    ),
    "axis as text": (lambda x: layer(x, axis="C"), TypeError, "got 'C'"),
    "scale too short": (
        lambda x: layer(x, C[:5], C),
        ValueError,
        "scale: expected shape (6,) for axis [3] of x of shape (2, 3, 4, 6), got (5,)",
    ),
    "scale of other axes": (
        lambda x: layer(x, np.ones((4, 6), np.float32), axis=[-1]),
        ValueError,
        "scale: expected shape (6,)",
    ),
    "scale transposed": (
        lambda x: layer(x, np.ones((6, 4), np.float32), axis=[2, 3]),
        ValueError,
        "scale: expected shape (4, 6) or (24,)",
    ),
    "offset too long": (
        lambda x: instance(x, C, np.ones(7, np.float32)),
        ValueError,
        "offset: expected shape (6,) for the channels of x of shape (2, 3, 4, 6) in 'NHWC', got "
        "(7,)",
    ),
    "scale of the other format": (
        lambda x: instance(x, C, C, "NCHW"),
        ValueError,
        "scale: expected shape (3,)",
    ),
    "integer scale": (lambda x: layer(x, tf.ones(6, tf.int32)), TypeError, "scale: expected float"),
    "two types": (
        lambda x: layer(x, tf.ones(6), tf.ones(6, tf.float16)),
        TypeError,
        "scale and offset: expected one dtype for both, got float32 and float16",
    ),
    "unknown format": (
        lambda x: instance(x, C, C, "CHWN"),
        ValueError,
        f"data_format: expected one of {FORMATS}, got 'CHWN'",
    ),
    "format of Keras": (
        lambda x: group(x, C, C, 2, data_format="channels_last"),
        ValueError,
        "got 'channels_last'",
    ),
    "no spatial axis": (
        lambda x: instance(x[0, 0]),
        ValueError,
        "x: expected at least 3 axes (data_format 'NHWC'), got shape (4, 6)",
    ),
    "groups that do not divide": (
        lambda x: group(x, C, C, 4),
        ValueError,
        "groups: expected a divisor of 6, the number of channels of x of shape (2, 3, 4, 6) in "
        "'NHWC', got 4",
    ),
    "no groups": (lambda x: group(x, groups=0), ValueError, "expected a positive integer"),
    "groups 2.5": (lambda x: group(x, groups=2.5), TypeError, "expected an integer, got 2.5"),
    "negative epsilon": (
        lambda x: layer(x, epsilon=-1e-3),
        ValueError,
        "epsilon: expected a finite Python number >= 0, got -0.001",
    ),
    "epsilon nan": (lambda x: rms(x, epsilon=float("nan")), ValueError, "got nan"),
    "epsilon as a tensor": (lambda x: layer(x, epsilon=tf.constant(0.1)), ValueError, "epsilon"),
    "gradient of another axis": (
        lambda x: nv_norms.fused_layer_norm_grad_op(x, x, C, x[..., 0], x[..., 0], axis=[2]),
        ValueError,
        "scale: expected shape (4,)",
    ),
}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("name", BAD)
def test_bad_argument(name: str, traced: bool) -> None:
    call, error, sentence = BAD[name]
    if traced:
        call = tf.function(call, autograph=False).get_concrete_function
    with pytest.raises(error) as raised:
        call(X)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x: layer(x, C[:5]), "expected 6 elements"),
        (lambda x: instance(x, C, C[:5]), "expected 6 elements"),
        (lambda x: group(x, groups=4), "6 channels cannot be split into 4 groups"),
    ],
)
def test_what_shows_only_when_the_shape_is_known(
    call: Callable[[tf.Tensor], Any], sentence: str
) -> None:
    function = tf.function(call, input_signature=[tf.TensorSpec(None)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=sentence):
        function(X)
