"""Shape inference, and what users are told where sizes do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import forward


def shapes(build: Callable[[tf.Tensor], Any], shape: list[int | None] | None) -> list[Any]:
    """Static shapes of the outputs of an op whose x has this static shape."""
    with tf.Graph().as_default():
        outputs = build(tf.compat.v1.placeholder(tf.float32, shape))
    return [None if o.shape.rank is None else o.shape.as_list() for o in outputs]


@pytest.mark.parametrize(
    "axis,shape,stat",
    [
        ([-1], [2, 3, 4], [2, 3]),
        ([-1], [None, 3, 4], [None, 3]),
        ([1], [None, None, 4], [None, 4]),
        ([0, -1], [2, None, None], [None]),
        ([-1], None, None),
    ],
)
def test_layer_norm_shapes(ops: Any, axis: list[int], shape: Any, stat: Any) -> None:
    def build(x: tf.Tensor) -> Any:
        return ops.fused_layer_norm(x=x, scale=[], offset=[], out_type=tf.float32, axis=axis)

    assert shapes(build, shape) == [shape, stat, stat]


@pytest.mark.parametrize(
    "data_format,shape,stat",
    [
        ("N...C", [2, 5, 5, 8], [2, 4]),
        ("NC...", [None, 8, None], [None, 4]),
        ("N...C", [None, None, None], [None, 4]),
        ("N...C", None, [None, 4]),
    ],
)
def test_group_norm_shapes(ops: Any, data_format: str, shape: Any, stat: Any) -> None:
    def build(x: tf.Tensor) -> Any:
        return ops.fused_group_norm(
            x=x, scale=[], offset=[], out_type=tf.float32, groups=4, data_format=data_format
        )

    assert shapes(build, shape) == [shape, stat, stat]


def test_instance_norm_shapes(ops: Any) -> None:
    def build(x: tf.Tensor) -> Any:
        return ops.fused_instance_norm(x=x, scale=[], offset=[], out_type=tf.float32)

    assert shapes(build, [None, 6, 6, 3]) == [[None, 6, 6, 3], [None, 3], [None, 3]]
    assert shapes(build, None) == [None, [None, None], [None, None]]


def test_shapes_of_parameters_of_each_sample(ops: Any) -> None:
    def build(x: tf.Tensor) -> Any:
        batch = x.shape[0] if x.shape.rank else None
        statistics = tf.compat.v1.placeholder(tf.float32, [batch, 8])
        outputs = ops.fused_instance_norm_grad(
            dy=x, x=x, scale=[], offset=[], mean=statistics, rstd=statistics, per_sample=True,
            dx_type=tf.float32, param_type=tf.float32, num_dx=1, num_dscale=1, num_doffset=1,
        )  # fmt: skip
        return [output[0] for output in outputs]

    assert shapes(build, [2, 5, 8]) == [[2, 5, 8], [2, 8], [2, 8]]
    assert shapes(build, [None, 5, 8]) == [[None, 5, 8], [None, 8], [None, 8]]
    assert shapes(build, None) == [None, [None, None], [None, None]]


def test_rms_norm_shapes(ops: Any) -> None:
    def build(x: tf.Tensor) -> Any:
        return ops.fused_rms_norm(x=x, scale=[], offset=[], out_type=tf.float32, axis=[-2])

    assert shapes(build, [None, 6, 3]) == [[None, 6, 3], [None, 3]]


X = np.zeros((2, 3, 8), np.float32)
WRONG = [
    ("LayerNorm", {"scale": np.ones(7, np.float32)}, r"scale has shape \[7\], expected 8 elements"),
    (
        "LayerNorm",
        {"offset": np.ones((2, 4, 2), np.float32)},
        r"offset has shape \[2,4,2\], expected 8",
    ),
    (
        "InstanceNorm",
        {"scale": np.ones(12, np.float32), "per_sample": True},
        r"scale has shape \[12\], expected 16 elements",
    ),
    (
        "GroupNorm",
        {"offset": np.ones((2, 8), np.float32), "groups": 4},
        r"offset has shape \[2,8\], expected 8 elements",
    ),
    ("LayerNorm", {"axis": [3]}, "axis 3 is out of range: x has rank 3"),
    ("LayerNorm", {"axis": [-4]}, "axis -4 is out of range: x has rank 3"),
    ("LayerNorm", {"axis": [1, -2]}, r"axis \[1, -2\] names one axis twice"),
    ("LayerNorm", {"axis": []}, "axis is empty"),
    ("RMSNorm", {"scale": np.ones(3, np.float32)}, r"scale has shape \[3\], expected 8 elements"),
    ("GroupNorm", {"groups": 3}, "8 channels cannot be split into 3 groups"),
    (
        "GroupNorm",
        {"groups": 2, "scale": np.ones(2, np.float32)},
        r"scale has shape \[2\], expected 8",
    ),
    ("InstanceNorm", {"offset": np.ones(3, np.float32)}, r"offset has shape \[3\], expected 8"),
]


@pytest.mark.parametrize("kind,attributes,message", WRONG)
def test_sizes_that_do_not_fit_when_the_op_runs(
    ops: Any, device: str, kind: str, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        forward(ops, kind, X, device=device, **attributes)


@pytest.mark.parametrize("kind,attributes,message", WRONG)
def test_sizes_that_do_not_fit_when_the_graph_is_built(
    ops: Any, kind: str, attributes: dict[str, Any], message: str
) -> None:
    name = {
        "LayerNorm": "layer",
        "RMSNorm": "rms",
        "GroupNorm": "group",
        "InstanceNorm": "instance",
    }
    given = {k: [v] for k, v in attributes.items() if k in ("scale", "offset")}
    given = {"scale": [], "offset": [], **given}
    rest = {k: v for k, v in attributes.items() if k not in ("scale", "offset")}
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        getattr(ops, f"fused_{name[kind]}_norm")(x=X, out_type=tf.float32, **given, **rest)


def test_a_vector_is_no_batch_of_channels(ops: Any, device: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: expected a batch axis"):
        forward(ops, "InstanceNorm", np.zeros(4, np.float32), device=device)


def test_the_type_of_the_statistics_is_checked(ops: Any, device: str) -> None:
    with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError, match="expected double"):
        ops.fused_layer_norm(
            x=tf.zeros((2, 3), tf.float64), scale=[], offset=[], out_type=tf.float64, U=tf.float32
        )


def test_more_statistics_than_can_be_counted(ops: Any, device: str) -> None:
    """No channels can be split into any number of groups."""
    with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError, match="samples"):
        ops.fused_group_norm(
            x=tf.zeros([2**20, 5, 0]), scale=[], offset=[], out_type=tf.float32, groups=2**50
        )


@pytest.mark.parametrize("per_sample", [False, True])
def test_more_parameters_than_can_be_counted(ops: Any, device: str, per_sample: bool) -> None:
    """No samples can have any number of elements each; ops that run eagerly are not asked before
    what shapes they will give."""
    over = {"axis": [1, 2], "per_sample": per_sample}
    with tf.device(device):
        x, scale, stat = tf.zeros([0, 2**40, 2**40]), tf.ones((8, 1)), tf.zeros([0])
        with pytest.raises(tf.errors.InvalidArgumentError, match="less than 2"):
            ops.fused_layer_norm(x=x, scale=[scale], offset=[], out_type=x.dtype, **over)
        with pytest.raises(tf.errors.InvalidArgumentError, match="less than 2"):
            ops.fused_layer_norm_grad(
                dy=x, x=x, mean=stat, rstd=stat, scale=[], num_dx=1, num_dscale=1, num_doffset=0,
                dx_type=x.dtype, param_type=x.dtype, **over,
            )  # fmt: skip


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("epsilon", [-1e-3, np.nan, np.inf])
def test_an_epsilon_that_is_no_number_of_at_least_0(
    ops: Any, device: str, epsilon: float, jit_compile: bool
) -> None:
    @tf.function(jit_compile=jit_compile)
    def norm(x):
        return ops.fused_rms_norm(x=x, scale=[], offset=[], out_type=tf.float32, epsilon=epsilon)

    message = "epsilon is .*, expected a finite number of at least 0"
    with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError, match=message):
        norm(X)
