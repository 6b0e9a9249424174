"""Norms by name with a scale and an offset of each example: as each by itself."""

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
    Case("layer", (3, 4, 5, 6), (-1,)),
    Case("layer", (3, 4, 5, 6), (3, 2)),
    Case("layer", (4, 33), (1,)),
    Case("rms", (3, 7, 16), (2,)),
    Case("rms", (3, 4, 5, 6), (-2, -1)),
]


def _inputs(case: Case, rng: np.random.Generator, dtype: str = "float32") -> list[np.ndarray]:
    x, scale, offset, dy = case.random(rng, dtype)
    shape = (case.shape[0], *scale.shape)
    given = (rng.normal(center, 0.3, shape).astype(scale.dtype) for center in (1.0, 0.0))
    return [x, *given, dy]


@pytest.mark.sampled(3)
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
        statistics = [rstd] if mean is None else [rstd, mean]
        gradients = tape.gradient(y, [x, scale, offset], output_gradients=dy)
        return [y, *gradients, *statistics]

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
        y, dx, dscale, doffset = (value[i : i + 1] for value in got[:4])
        rstd, *mean = (value.reshape(case.shape[0], -1)[i] for value in got[4:])
        assert_close(y, forward.y, dtype, "y")
        assert_close(rstd, forward.rstd.ravel(), "float32", "inv_std")
        for value in mean:
            assert_close(value, forward.mean.ravel(), "float32", "mean", size=2)
        assert_close(dx, backward.dx, dtype, "dx", 16)
        assert_close(dscale[0], backward.dgamma, "float32", "dscale", 16)
        assert_close(doffset[0], backward.dbeta, "float32", "doffset", 16)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (6,), (1, 1, 1, 6)], ids=str)
def test_a_scale_that_all_examples_share(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    case = CASES[0]
    x, scale, offset, _ = case.random(rng)
    y = nv_norms.fused_instance_norm(x, scale.reshape(shape), offset).y
    assert_close(y, case.forward(x, scale, offset, 1e-3).y, "float32", "y")


@pytest.mark.parametrize("case", [CASES[1], CASES[5], CASES[6]], ids=str)
def test_the_gradient_by_name(case: Case, rng: np.random.Generator) -> None:
    x, scale, offset, dy = map(tf.constant, _inputs(case, rng))
    with tf.GradientTape() as tape:
        tape.watch([x, scale, offset])
        y, mean, rstd = case.call(x, scale, offset)
    expected = tape.gradient(y, [x, scale, offset], output_gradients=dy)
    gradient = {
        "instance": nv_norms.fused_instance_norm_grad_op,
        "layer": nv_norms.fused_layer_norm_grad_op,
    }[case.kind]
    got = gradient(dy, x, scale, mean, rstd, **case.attributes)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_scale_of_two_axes_says_which_are_normalized_where_no_axis_is_given(
    rng: np.random.Generator,
) -> None:
    """As many examples as rows: only `axis` can tell."""
    x, scale = rng.normal(size=(4, 4, 6)).astype("f"), rng.normal(size=(4, 6)).astype("f")
    both = Case("layer", x.shape, (-2, -1)).forward(x, scale, None)
    assert_close(nv_norms.fused_layer_norm(x, scale).y, both.y, "float32", "y")
    y = nv_norms.fused_layer_norm(x, scale, axis=-1).y
    one = [Case("layer", (4, 6)).forward(x[i], scale[i], None).y for i in range(4)]
    assert_close(y, np.stack(one), "float32", "y")


@pytest.mark.parametrize(
    "axis,scale,offset,message",
    [
        ([-1], (3, 6), (6,), r"both of shape \(6,\) or both \(N, 6\), got \(3, 6\) and \(6,\)"),
        ([2, 3], (3, 5, 6), (5, 6), r"both of shape \(5, 6\) or both \(N, 5, 6\)"),
        ([-1], (2, 6), None, r"scale: expected shape \(6,\), or \(3, 6\) for each example its own"),
        ([1], (3, 4), None, r"scale: expected shape \(4,\) for axis \[1\]"),  # not the last one
        ([0, 3], (3, 3, 6), None, r"scale: expected shape \(3, 6\)"),
        (None, (3, 6), None, r"scale: expected shape \(6,\)"),
    ],
)
def test_shapes_that_do_not_fit_axes(axis: Any, scale: Any, offset: Any, message: str) -> None:
    x = tf.ones((3, 4, 5, 6))
    given = [None if shape is None else tf.ones(shape) for shape in (scale, offset)]
    for function in (nv_norms.fused_layer_norm, nv_norms.fused_rms_norm):
        with pytest.raises(ValueError, match=message):
            function(x, *given, axis=axis)


@pytest.mark.parametrize(
    "scale,offset,message",
    [
        ((3, 6), (6,), r"expected both of shape \[C\] or both \[N, C\], got \(3, 6\) and \(6,\)"),
        ((6,), (3, 6), r"expected both of shape \[C\] or both \[N, C\], got \(6,\) and \(3, 6\)"),
        (
            (2, 6),
            (2, 6),
            r"scale: expected shape \(6,\), or \(3, 6\) for each example its own, for",
        ),
        (
            (3, 6),
            (2, 6),
            r"offset: expected shape \(6,\), or \(3, 6\) for each example its own, for",
        ),
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
