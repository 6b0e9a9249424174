"""What users are told where sizes do not fit and only XLA's compiler sees it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support import snake

X = (2, 3, 8)
FORWARD = [
    ("LayerNorm", {"scale": [7]}, {}, r"scale has shape \[7\], expected 8 elements for x of shape"),
    ("LayerNorm", {"offset": [2, 4, 2]}, {}, r"offset has shape \[2,4,2\], expected 8"),
    ("LayerNorm", {}, {"axis": [3]}, "axis 3 is out of range: x has rank 3"),
    ("LayerNorm", {}, {"axis": [1, -2]}, r"axis \[1, -2\] names one axis twice"),
    ("RMSNorm", {"scale": [3]}, {}, r"scale has shape \[3\], expected 8 elements"),
    ("GroupNorm", {}, {"groups": 3}, "8 channels cannot be split into 3 groups"),
    ("InstanceNorm", {"offset": [3]}, {}, r"offset has shape \[3\], expected 8"),
]


def op(ops: Any, kind: str) -> Any:
    return getattr(ops, {"RMSNorm": "fused_rms_norm"}.get(kind, f"fused_{snake(kind)}"))


@pytest.mark.parametrize("kind,params,attributes,message", FORWARD)
def test_a_forward_op_whose_sizes_do_not_fit(
    ops: Any, kind: str, params: dict[str, Any], attributes: dict[str, Any], message: str
) -> None:
    @tf.function(
        jit_compile=True,
        autograph=False,
        input_signature=[tf.TensorSpec(None), {name: tf.TensorSpec(None) for name in params}],
    )
    def run(x: tf.Tensor, params: dict[str, tf.Tensor]) -> Any:
        given = {name: [params[name]] if name in params else [] for name in ("scale", "offset")}
        return op(ops, kind)(x=x, out_type=tf.float32, **given, **attributes)

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(tf.ones(X), {name: tf.ones(shape) for name, shape in params.items()})


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"dy": [2, 3, 7]}, r"dy has shape \[2,3,7\], expected \[2,3,8\]"),
        ({"scale": [9]}, r"scale has shape \[9\], expected 8 elements for x of shape \[2,3,8\]"),
        ({"mean": [2, 8]}, r"mean has shape \[2,8\], expected \[2,3\]"),
        ({"rstd": [6]}, r"rstd has shape \[6\], expected \[2,3\]"),
    ],
)
def test_a_gradient_op_whose_sizes_do_not_fit(
    ops: Any, changed: dict[str, Any], message: str
) -> None:
    shapes = {"dy": X, "x": X, "scale": [8], "mean": [2, 3], "rstd": [2, 3], **changed}

    @tf.function(
        jit_compile=True,
        autograph=False,
        input_signature=[{name: tf.TensorSpec(None) for name in shapes}],
    )
    def run(given: dict[str, Any]) -> Any:
        return ops.fused_layer_norm_grad(
            **{**given, "scale": [given["scale"]]},
            dx_type=tf.float32,
            param_type=tf.float32,
            num_dx=1,
            num_dscale=1,
            num_doffset=1,
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run({name: tf.ones(shape) for name, shape in shapes.items()})


def test_the_type_of_the_statistics(ops: Any) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def run(x: tf.Tensor) -> Any:
        return ops.fused_layer_norm(x=x, scale=[], offset=[], out_type=tf.float64, U=tf.float32)

    with pytest.raises(tf.errors.InvalidArgumentError, match="U is float, expected double"):
        run(tf.ones((2, 3), tf.float64))
