"""Code written for NVIDIA/atex's nv_norms: its names, argument orders, outputs and shapes.

Ranks, axes, odd sizes and empty tensors are those that its users rely on; sizes are kept small.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from nv_norms_cases import Case, assert_close

import nv_norms

SMALL = [4, 10, 15, 31, 257, 2003, 2**14 + 1]
LARGE = [2**15, 2**16 + 2, 2**18 + 3]


def _layer_op(case: Case, dtype: str, rng: np.random.Generator) -> None:
    x, gamma, beta, dy = case.random(rng, dtype)
    axis = list(case.axis)
    y, mean, inv_std = nv_norms.fused_layer_norm_op(tf.constant(x), gamma, beta, axis=axis)
    expected = case.forward(x, gamma, beta)
    assert_close(y, expected.y, dtype, "y", 16)
    assert_close(mean, expected.mean, "float32", "mean", size=2)
    assert_close(inv_std, expected.rstd, "float32", "inv_std", 16)
    dx, dgamma, dbeta = nv_norms.fused_layer_norm_grad_op(
        tf.constant(dy), tf.constant(x), tf.constant(gamma), mean, inv_std, axis=axis
    )
    wanted = case.backward(dy, x, gamma)
    assert dx.dtype == tf.as_dtype(dtype) and dgamma.dtype == dbeta.dtype == tf.float32
    assert_close(dx, wanted.dx, dtype, "dx", 32)
    assert_close(dgamma, wanted.dgamma, "float32", "dgamma", 32)
    assert_close(dbeta, wanted.dbeta, "float32", "dbeta", 32)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "features", SMALL + [pytest.param(n, marks=pytest.mark.slow) for n in LARGE]
)
@pytest.mark.parametrize("rank", [2, 3])
def test_layer_norm_op(rank: int, features: int, dtype: str, rng: np.random.Generator) -> None:
    for batch in (1, 2, 5):
        axis = (-1,) if rank == 2 else (-2, -1)
        _layer_op(Case("layer", (batch,) * (rank - 1) + (features,), axis), dtype, rng)


@pytest.mark.parametrize(
    "shape", [(120, 128, 8, 8), (12, 128, 8, 6), (2, 128, 8, 8), (1, 64, 38, 27)]
)
def test_layer_norm_op_over_three_axes(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    _layer_op(Case("layer", shape, (1, 2, 3)), "float32", rng)


def test_layer_norm_ops_with_nothing() -> None:
    x, nothing = tf.zeros((0, 0)), tf.zeros(0)
    y, mean, inv_std = nv_norms.fused_layer_norm_op(x, nothing, nothing)
    assert (y.shape, mean.shape, inv_std.shape) == ((0, 0), (0,), (0,))
    outputs = nv_norms.fused_layer_norm_grad_op(x, x, nothing, nothing, nothing)
    assert [v.shape for v in outputs] == [(0, 0), (0,), (0,)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize(
    "spatial", [(8, 8), (16, 16), (8, 8, 8), (1, 11), (3, 4), (1, 31), (1, 4001), (61, 82)]
)
def test_instance_norm_op(
    spatial: tuple[int, ...], channels_first: bool, dtype: str, rng: np.random.Generator
) -> None:
    shape = (2, 32, *spatial) if channels_first else (2, *spatial, 32)
    data_format = "NC..." if channels_first else "N...C"
    case = Case("instance", shape, data_format=data_format)
    x, gamma, beta, dy = case.random(rng, dtype)
    y, mean, inv_std = nv_norms.fused_instance_norm_op(
        tf.constant(x), gamma, beta, epsilon=1e-3, data_format=data_format
    )
    expected = case.forward(x, gamma, beta)
    assert mean.dtype == inv_std.dtype == tf.float32
    assert_close(y, expected.y, dtype, "y", 16)
    assert_close(mean, expected.mean, "float32", "mean", size=2)
    assert_close(inv_std, expected.rstd, "float32", "inv_std", 16)
    dx, dgamma, dbeta = nv_norms.fused_instance_norm_grad_op(
        tf.constant(dy), tf.constant(x), gamma, mean, inv_std, data_format=data_format
    )
    wanted = case.backward(dy, x, gamma)
    assert_close(dx, wanted.dx, dtype, "dx", 32)
    assert_close(dgamma, wanted.dgamma, "float32", "dgamma", 32)
    assert_close(dbeta, wanted.dbeta, "float32", "dbeta", 32)


def test_instance_norm_ops_with_nothing() -> None:
    x, nothing, statistics = tf.zeros((0,) * 5), tf.zeros(0), tf.zeros((0, 0))
    y, mean, inv_std = nv_norms.fused_instance_norm_op(x, nothing, nothing, data_format="NC...")
    assert (y.shape, mean.shape, inv_std.shape) == ((0,) * 5, (0, 0), (0, 0))
    outputs = nv_norms.fused_instance_norm_grad_op(
        x, x, nothing, statistics, statistics, data_format="N...C"
    )
    assert [v.shape for v in outputs] == [(0,) * 5, (0,), (0,)]


def test_formats_name_the_channels_whatever_the_rank(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 3, 4, 5, 6)).astype(np.float32)
    last = nv_norms.fused_instance_norm(x, data_format="NDHWC").y
    second = nv_norms.fused_instance_norm(x, data_format="NCDHW").y
    for data_format in ("NHWC", "N...C"):
        np.testing.assert_array_equal(
            nv_norms.fused_instance_norm(x, None, None, data_format).y, last
        )
    for data_format in ("NCHW", "NC..."):
        np.testing.assert_array_equal(
            nv_norms.fused_instance_norm(x, None, None, data_format).y, second
        )
    np.testing.assert_array_equal(nv_norms.fused_instance_norm(x).y, last)


@pytest.mark.parametrize("axis", [[1, 2], [-2, -1], [1, -1], [-2, 2], -1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layer_normalization_built_by_hand(
    axis: int | list[int], dtype: str, rng: np.random.Generator
) -> None:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    case = Case("layer", (2, 3, 4), axes)
    x, gamma, beta, _ = case.random(rng, dtype)
    layer = nv_norms.LayerNormalization(axis=axis)
    layer.build(input_shape=case.shape)
    layer.set_weights([tf.constant(gamma), tf.constant(beta)])
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    dx, (dgamma, dbeta) = tape.gradient(y, [x, layer.variables])
    expected = case.backward(np.ones(case.shape), x.numpy(), gamma)
    assert_close(y, case.forward(x.numpy(), gamma, beta).y, "float32", "y", 16)
    # A sum over x of dy = 1 with a mean taken away: what is left is the rounding of its terms.
    assert np.max(np.abs(dx - expected.dx)) <= (1e-3 if dtype == "float16" else 1e-5)
    assert_close(dgamma, expected.dgamma, "float32", "dgamma", 64)
    assert_close(dbeta, expected.dbeta, "float32", "dbeta", 16)


@pytest.mark.parametrize("axis", [1, -1])
def test_instance_normalization_built_by_hand(axis: int, rng: np.random.Generator) -> None:
    shape = (2, 32, 5, 6, 7) if axis == 1 else (2, 5, 6, 7, 32)
    case = Case("instance", shape, data_format="NC..." if axis == 1 else "N...C")
    x, gamma, beta, dy = case.random(rng)
    layer = nv_norms.InstanceNormalization(axis=axis)
    layer.build(input_shape=shape)
    layer.set_weights([gamma, beta])
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(y * dy)
    dx, (dgamma, dbeta) = tape.gradient(loss, [x, layer.variables])
    expected = case.backward(dy, x.numpy(), gamma)
    assert_close(y, case.forward(x.numpy(), gamma, beta).y, "float32", "y", 16)
    assert_close(dx, expected.dx, "float32", "dx", 16)
    assert_close(dgamma, expected.dgamma, "float32", "dgamma", 32)
    assert_close(dbeta, expected.dbeta, "float32", "dbeta", 32)
