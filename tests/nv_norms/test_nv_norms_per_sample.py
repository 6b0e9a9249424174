"""Instance and group norm by name with a scale and an offset of each example: as each by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from nv_norms_cases import Case, assert_close

import nv_norms

CASES = [
    Case("instance", (3, 4, 5, 6), data_format="NHWC"),
    Case("instance", (4, 6, 4, 5), data_format="NCHW"),
    Case("group", (3, 4, 5, 6), data_format="NHWC", groups=3),
    Case("group", (5, 6, 7), data_format="NC...", groups=2),
    Case("group", (5, 24), data_format="NC...", groups=4),
]


def _inputs(case: Case, rng: np.random.Generator, dtype: str = "float32") -> list[np.ndarray]:
    x, scale, offset, dy = case.random(rng, dtype)
    shape = (case.shape[0], scale.size)
    given = (rng.normal(center, 0.3, shape).astype(scale.dtype) for center in (1.0, 0.0))
    return [x, *given, dy]


@pytest.mark.parametrize("how", ["eager", "graph", "compiled", "unknown batch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_example_is_as_by_itself(
    case: Case, dtype: str, how: str, rng: np.random.Generator, device: str
) -> None:
    inputs = _inputs(case, rng, dtype)

    def step(x: Any, scale: Any, offset: Any, dy: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            y, mean, rstd = case.call(x, scale, offset)
        return [y, mean, rstd, *tape.gradient(y, [x, scale, offset], output_gradients=dy)]

    if how != "eager":
        signature = None
        if how == "unknown batch":
            signature = [tf.TensorSpec((None, *v.shape[1:]), v.dtype) for v in inputs]
        step = tf.function(step, input_signature=signature, jit_compile=how == "compiled")
    with tf.device(device):
        got = [value.numpy() for value in step(*map(tf.constant, inputs))]
    alone = dataclasses.replace(case, shape=(1, *case.shape[1:]))
    for i in range(case.shape[0]):
        x, scale, offset, dy = (value[i : i + 1] for value in inputs)
        forward = alone.forward(x, scale[0], offset[0])
        backward = alone.backward(dy, x, scale[0])
        y, mean, rstd, dx, dscale, doffset = (value[i : i + 1] for value in got)
        assert_close(y, forward.y, dtype, "y")
        assert_close(mean, forward.mean, "float32", "mean", size=2)
        assert_close(rstd, forward.rstd, "float32", "inv_std")
        assert_close(dx, backward.dx, dtype, "dx", 16)
        assert_close(dscale[0], backward.dgamma, "float32", "dscale", 16)
        assert_close(doffset[0], backward.dbeta, "float32", "doffset", 16)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (6,), (1, 1, 1, 6)], ids=str)
def test_a_scale_that_all_examples_share(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    case = CASES[0]
    x, scale, offset, _ = case.random(rng)
    y = nv_norms.fused_instance_norm(x, scale.reshape(shape), offset).y
    assert_close(y, case.forward(x, scale, offset, 1e-3).y, "float32", "y")


def test_the_gradient_by_name(rng: np.random.Generator) -> None:
    case = CASES[1]
    x, scale, offset, dy = map(tf.constant, _inputs(case, rng))
    with tf.GradientTape() as tape:
        tape.watch([x, scale, offset])
        y, mean, rstd = case.call(x, scale, offset)
    expected = tape.gradient(y, [x, scale, offset], output_gradients=dy)
    got = nv_norms.fused_instance_norm_grad_op(dy, x, scale, mean, rstd, data_format="NCHW")
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "scale,offset,message",
    [
        ((3, 6), (6,), r"expected both of shape \[C\] or both \[N, C\], got \(3, 6\) and \(6,\)"),
        ((6,), (3, 6), r"expected both of shape \[C\] or both \[N, C\], got \(6,\) and \(3, 6\)"),
        ((2, 6), (2, 6), r"scale: expected shape \(3, 6\) or \(18,\) for the channels of x"),
        ((3, 6), (2, 6), r"offset: expected shape \(3, 6\) or \(18,\) for the channels of x"),
        ((3, 5), None, r"scale: expected shape \(6,\) for the channels of x"),
    ],
)
def test_shapes_that_do_not_fit(scale: Any, offset: Any, message: str) -> None:
    x = tf.ones((3, 4, 5, 6))
    given = [None if shape is None else tf.ones(shape) for shape in (scale, offset)]
    with pytest.raises(ValueError, match=message):
        nv_norms.fused_instance_norm(x, *given)
    with pytest.raises(ValueError, match=message):
        nv_norms.fused_group_norm(x, *given, groups=2)


def test_a_batch_of_another_size_when_it_runs(rng: np.random.Generator) -> None:
    @tf.function(input_signature=[tf.TensorSpec((None, 4, 6)), tf.TensorSpec((None, 6))])
    def run(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        return nv_norms.fused_instance_norm(x, scale).y

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"scale has shape \[2,6\], expected 1"
    ):
        run(tf.ones((3, 4, 6)), tf.ones((2, 6)))
