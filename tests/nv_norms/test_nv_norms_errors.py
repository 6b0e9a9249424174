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
RAGGED = tf.ragged.constant([[1.0, 2.0], [3.0]])
C = np.ones(6, np.float32)
INTS, HALVES = tf.zeros((2, 6), tf.int32), tf.zeros(24, tf.float16)
EPSILON = tf.Variable(1e-3)
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
    "no x": (
        lambda x: layer(None),
        TypeError,
        "x: expected a dense tensor, or numbers that make one, got None",
    ),
    "ragged x": (lambda x: rms(RAGGED), TypeError, "got RaggedTensor of shape (2, None)"),
    "sparse x": (
        lambda x: group(tf.sparse.from_dense(np.eye(3, dtype=np.float32))),
        TypeError,
        "x: expected a dense tensor, or numbers that make one, got SparseTensor of shape (3, 3)",
    ),
    "x as a dict": (lambda x: instance({"x": 1.0}), TypeError, "got dict {'x': 1.0}"),
    "x of uneven lists": (lambda x: layer([[1.0], [2.0, 3.0]]), TypeError, "got list [[1.0], ["),
    "scalar x": (lambda x: layer(1.0), ValueError, "x: expected at least 1 axis, got shape ()"),
    "scalar x for a gradient": (
        lambda x: nv_norms.fused_layer_norm_grad_op(1.0, 1.0, None, 1.0, 1.0),
        ValueError,
        "x: expected at least 1 axis, got shape ()",
    ),
    "scalar x of channels": (
        lambda x: group(tf.constant(1.0)),
        ValueError,
        "x: expected at least 2 axes (data_format 'NHWC'), got shape ()",
    ),
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
    "axis of floats": (lambda x: layer(x, axis=np.array([1.0])), TypeError, "got array([1.])"),
    "axis as a matrix": (lambda x: rms(x, axis=np.array([[1, 2]])), TypeError, "got array([[1"),
    "scale too short": (
        lambda x: layer(x, C[:5], C),
        ValueError,
        "scale: expected shape (6,) for axis [3] of x of shape (2, 3, 4, 6), got (5,)",
    ),
    "scale of other axes": (
        lambda x: layer(x, np.ones((4, 6), np.float32), axis=[-1]),
        ValueError,
        "scale: expected shape (6,), or (2, 6) for each example its own, for axis [3] of x",
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
    "complex scale": (
        lambda x: layer(x, C * 1j),
        TypeError,
        "scale: expected real numbers, got complex64",
    ),
    "offset as text": (
        lambda x: group(x, C, ["a"] * 6, 2),
        TypeError,
        "offset: expected real numbers, got string",
    ),
    "ragged scale": (
        lambda x: layer(x, RAGGED),
        TypeError,
        "scale: expected a dense tensor, or numbers that make one, got RaggedTensor of shape (2, N",
    ),
    "scale as a dict": (lambda x: rms(x, {}), TypeError, "got dict {}"),
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
    "epsilon as text": (lambda x: layer(x, epsilon="1e-3"), ValueError, "got '1e-3'"),
    "epsilon beyond floats": (lambda x: rms(x, epsilon=10**400), ValueError, "expected a finite"),
    "epsilon that float32 flushes": (
        lambda x: group(x, groups=2, epsilon=1e-40),
        ValueError,
        "epsilon: expected 0, or a number from 1.1754943508222875e-38 to 3.4028234663852886e+38 "
        "(the normal numbers of float32), got 1e-40",
    ),
    "epsilon that float32 lacks": (
        lambda x: instance(tf.cast(x, tf.float64), epsilon=3.4028235e38),  # rounds to the largest
        ValueError,
        "got 3.4028235e+38",
    ),
    "epsilon as a tensor": (lambda x: layer(x, epsilon=tf.constant(0.1)), ValueError, "epsilon"),
    "gradient without statistics": (
        lambda x: nv_norms.fused_layer_norm_grad_op(x, x, C, x[..., 0], None),
        TypeError,
        "reserve_space_2: expected a dense tensor, or numbers that make one, got None",
    ),
    "gradient of another axis": (
        lambda x: nv_norms.fused_layer_norm_grad_op(x, x, C, x[..., 0], x[..., 0], axis=[2]),
        ValueError,
        "scale: expected shape (4,)",
    ),
    "axis that is a float tensor": (
        lambda x: layer(x, axis=tf.constant(1.0)),
        TypeError,
        "axis: expected an integer or several",
    ),
    "huge axis": (lambda x: rms(x, axis=2**70), ValueError, "axis: expected integers of at most"),
    "huge groups": (lambda x: group(x, groups=2**70), ValueError, "groups: expected a positive"),
    "variable epsilon": (
        lambda x: layer(x, epsilon=EPSILON),
        ValueError,
        "epsilon: expected a finite Python number >= 0, got <tf.Variable",
    ),
    "integer mean of a gradient": (
        lambda x: nv_norms.fused_instance_norm_grad_op(x, x, C, INTS, INTS),
        TypeError,
        "reserve_space_1: expected float16, bfloat16, float32 or float64, got int32",
    ),
    "mean in another type": (
        lambda x: nv_norms.fused_layer_norm_grad_op(x, x, C, HALVES, HALVES),
        TypeError,
        "reserve_space_1: expected float32 for x in float32, got float16",
    ),
    "mean of another size": (
        lambda x: nv_norms.fused_layer_norm_grad_op(x, x, C, tf.zeros(23), tf.zeros(24)),
        ValueError,
        "reserve_space_1: expected 24 elements for axis [3] of x of shape (2, 3, 4, 6), got shape",
    ),
    "mean of another size than an instance norm has": (
        lambda x: nv_norms.fused_instance_norm_grad_op(x, x, C, tf.zeros(13), tf.zeros(12)),
        ValueError,
        "reserve_space_1: expected 12 elements for data_format 'NHWC' of x of shape (2, 3, 4",
    ),
    "an axis that is a truth value": (
        lambda x: nv_norms.fused_layer_norm(x, axis=True),
        TypeError,
        "axis: expected an integer or several, got True",
    ),
    "groups that are a truth value": (
        lambda x: nv_norms.fused_group_norm(x, groups=True),
        TypeError,
        "groups: expected an integer, got True",
    ),
    "an epsilon that is a truth value": (
        lambda x: nv_norms.fused_layer_norm(x, epsilon=True),
        ValueError,
        "epsilon: expected a finite Python number >= 0, got True",
    ),
    "gradient of y in another shape": (
        lambda x: nv_norms.fused_layer_norm_grad_op(x[:1], x, C, tf.zeros(24), tf.zeros(24)),
        ValueError,
        "y_backprop: expected x's shape, (2, 3, 4, 6), got (1, 3, 4, 6)",
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


@pytest.mark.parametrize(
    "call",
    [
        instance,
        lambda x: nv_norms.fused_instance_norm_grad_op(x, x, None, x[..., 0], x[..., 0]),
    ],
    ids=["forward", "gradient"],
)
@pytest.mark.parametrize(
    ("xla", "sentence"),
    [
        (False, r"x: expected at least 3 axes \(data_format .*NHWC.*got shape\] \[4 6\]"),
        (True, "x_has_at_least_3_axes"),
    ],
)
def test_an_instance_norm_without_spatial_axes_whose_rank_shows_late(
    call: Callable[[tf.Tensor], Any], xla: bool, sentence: str
) -> None:
    """The op itself gives 0 for [N, C], of which each channel of an example has one element."""
    function = tf.function(call, input_signature=[tf.TensorSpec(None)], jit_compile=xla)
    with pytest.raises(tf.errors.InvalidArgumentError, match=sentence):
        function(X[0, 0])


def test_a_known_rank_is_not_checked_when_the_graph_runs() -> None:
    function = tf.function(instance, input_signature=[tf.TensorSpec((None,) * 3)])
    kinds = {op.type for op in function.get_concrete_function().graph.get_operations()}
    assert "FusedInstanceNorm" in kinds
    assert not kinds & {"Assert", "StridedSlice"}
