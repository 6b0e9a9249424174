"""Graphs that compute nearly a normalization, and the formula that each computes instead."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import check, fused_nodes, layer_norm, moments, placeholder, run, trace

import oracle
from nv_norms_rewriter import rewrite


@pytest.mark.parametrize("size", [2, 3, 8, 100, 1000])
def test_variance_with_n_minus_1(rng, size: int) -> None:
    def make() -> None:
        x = placeholder("x", (None, size))
        mean = tf.reduce_mean(x, -1, keepdims=True)
        squares = tf.reduce_sum(tf.math.squared_difference(x, mean), -1, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(squares / (size - 1.0) + 1e-3), name="y")

    x = rng.normal(size=(3, size)).astype(np.float32)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.astype(np.float64).var(-1, ddof=1, keepdims=True) + 1e-3
    )
    check(trace(make), {"x": x}, expected, 0)


@pytest.mark.parametrize("size", [2, 1000])
def test_variance_with_n_from_a_sum(rng, size: int) -> None:
    def make() -> None:
        x = placeholder("x", (None, size))
        mean = tf.reduce_sum(x, -1, keepdims=True) / size
        squares = tf.reduce_sum(tf.math.squared_difference(x, mean), -1, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(squares / size + 1e-3), name="y")

    x = rng.normal(size=(3, size)).astype(np.float32)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1)


def test_weighted_moments(rng) -> None:
    def make() -> None:
        x, w = placeholder("x", (None, 8)), placeholder("w", (8,))
        mean, variance = tf.nn.weighted_moments(x, [-1], w, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(variance + 1e-3), name="y")

    x, w = rng.normal(size=(3, 8)).astype(np.float32), rng.uniform(0.5, 2, 8).astype(np.float32)
    share = w.astype(np.float64) / w.sum(dtype=np.float64)
    mean = (x * share).sum(-1, keepdims=True)
    variance = ((x - mean) ** 2 * share).sum(-1, keepdims=True)
    check(trace(make), {"x": x, "w": w}, (x - mean) / np.sqrt(variance + 1e-3), 0)


def test_weighted_moments_with_equal_weights(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = tf.nn.weighted_moments(x, [-1], tf.ones((8,)) * 3.0, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(variance + 1e-3), name="y")

    x = rng.normal(size=(3, 8)).astype(np.float32)
    check(trace(make), {"x": x}, oracle.layer_norm(x, epsilon=1e-3).y, 1)


@pytest.mark.parametrize("limit", [1.0, 1e3, 1e6, 1e15])
def test_input_that_is_clamped_keeps_its_clamp(rng, limit: float) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        tf.identity(layer_norm(tf.clip_by_value(x, -limit, limit)), name="y")

    x = (rng.normal(size=(3, 8)) * np.array([[1.0], [1e-2], [3.0]]) * limit).astype(np.float32)
    clamped = np.clip(x, -np.float32(limit), np.float32(limit))
    check(trace(make), {"x": x}, oracle.layer_norm(clamped, epsilon=1e-3).y, 1)


@pytest.mark.parametrize("limit", [1e-2, 1.0, 1e6, 1e12])
def test_variance_that_is_clamped_from_above(rng, limit: float) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        mean, variance = moments(x)
        tf.multiply(x - mean, tf.math.rsqrt(tf.minimum(variance, limit) + 1e-3), name="y")

    x = (rng.normal(size=(3, 8)) * np.array([[1.0], [1e-2], [10.0]])).astype(np.float32)
    x *= np.float32(np.sqrt(limit))
    centred = x.astype(np.float64) - x.mean(-1, dtype=np.float64, keepdims=True)
    variance = np.minimum((centred**2).mean(-1, keepdims=True), limit)
    check(trace(make), {"x": x}, centred / np.sqrt(variance + 1e-3), 0)


def test_variance_about_another_tensors_mean(rng) -> None:
    def make() -> None:
        x, z = placeholder("x", (None, 8)), placeholder("z", (None, 8))
        mean, _ = moments(z)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        tf.multiply(x - mean, tf.math.rsqrt(variance + 1e-3), name="y")

    x, z = (rng.normal(size=(3, 8)).astype(np.float32) for _ in range(2))
    centred = x.astype(np.float64) - z.mean(-1, dtype=np.float64, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    check(trace(make), {"x": x, "z": z}, expected, 0)


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 1, 1), (4, 1, 1, 1)])
def test_gamma_lies_where_the_graph_broadcasts_it(rng, axis: int, shape: tuple[int, ...]) -> None:
    """All sizes coincide, so only the position tells the axes apart."""
    gamma = rng.uniform(0.5, 2, shape).astype(np.float32)

    def make() -> None:
        x = placeholder("x", (4, 4, 4, 4))
        tf.identity(layer_norm(x, axis, gamma=tf.constant(gamma)), name="y")

    x = rng.normal(size=(4, 4, 4, 4)).astype(np.float32)
    expected = oracle.layer_norm(x, axis=axis, epsilon=1e-3).y * gamma
    after, _ = check(trace(make), {"x": x}, expected, 1)
    along = len(shape) * -1 % 4 == axis % 4
    assert fused_nodes(after)[0].attr["num_scale"].i == int(along)


def test_transposed_gamma(rng) -> None:
    def make() -> None:
        x, g = placeholder("x", (2, 3, 4, 4)), placeholder("g", (4, 4))
        tf.identity(layer_norm(x, [2, 3], gamma=tf.transpose(g)), name="y")

    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    g = rng.normal(size=(4, 4)).astype(np.float32)
    expected = oracle.layer_norm(x, g.T, axis=(2, 3), epsilon=1e-3).y
    check(trace(make), {"x": x, "g": g}, expected, 1)


def test_bias_add_along_channels_first_beside_a_norm_of_the_last_axis(rng) -> None:
    bias = rng.normal(size=4).astype(np.float32)

    def make() -> None:
        x, z = placeholder("x", (2, 4, 3, 4)), placeholder("z", (2, 4, 3, 4))
        mean, variance = moments(x)
        rstd = tf.math.rsqrt(variance + 1e-3)
        total = (x * rstd + z) - mean * rstd
        tf.nn.bias_add(total, tf.constant(bias), data_format="NCHW", name="y")

    x, z = (rng.normal(size=(2, 4, 3, 4)).astype(np.float32) for _ in range(2))
    expected = oracle.layer_norm(x, epsilon=1e-3).y + z + bias[:, None, None]
    check(trace(make), {"x": x, "z": z}, expected, 1)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize(("steps", "fused"), [(0, 1), (1, 0), (-1, 0)])
def test_reciprocal_count_in_half_precision(rng, dtype, steps: int, fused: int) -> None:
    """1 / 15 is rounded there; a neighbour of what comes out is no 1 / 15."""
    count = np.asarray(1 / 15, dtype.as_numpy_dtype)
    count = (count.view(np.int16) + np.int16(steps)).view(dtype.as_numpy_dtype)

    def make() -> None:
        x = placeholder("x", (4, 15), dtype)
        mean = tf.reduce_sum(x, -1, keepdims=True) * tf.constant(count)
        variance = tf.reduce_sum(tf.square(x - mean), -1, keepdims=True) * tf.constant(count)
        tf.multiply(x - mean, tf.math.rsqrt(variance + tf.constant(1e-3, dtype)), name="y")

    x = rng.normal(0.0, 1.0, (4, 15)).astype(dtype.as_numpy_dtype)
    wide = x.astype(np.float64)
    mean = wide.sum(-1, keepdims=True) * np.float64(count)
    variance = np.square(wide - mean).sum(-1, keepdims=True) * np.float64(count)
    expected = (wide - mean) / np.sqrt(variance + 1e-3)
    after, report = rewrite(trace(make), fetches=["y"])
    assert len(report.fused) == fused
    got = run(after, {"x": x}).astype(np.float64)
    np.testing.assert_allclose(got, expected, atol=0.01 if dtype == tf.float16 else 0.1)


@pytest.mark.parametrize("share", ["mean", "variance"])
@pytest.mark.parametrize("more", [0, 1, -1])
def test_count_beside_the_count_in_float64(share: str, more: int) -> None:
    """Of so many elements, one is less than what a constant in float32 may be off by."""
    size = 8_000_000

    def make() -> None:
        x = placeholder("x", (None, size), tf.float64)
        over = lambda a, more: (  # noqa: E731
            tf.reduce_sum(a, -1, keepdims=True) / tf.constant(size + more, tf.float64)
        )
        mean = over(x, more if share == "mean" else 0)
        squares = tf.math.squared_difference(x, mean)
        variance = over(squares, more if share == "variance" else 0)
        tf.multiply(x - mean, tf.math.rsqrt(variance + tf.constant(1e-3, tf.float64)), name="y")

    _, report = rewrite(trace(make), fetches=["y"])
    assert len(report.fused) == (more == 0)


def test_epsilon_beside_a_constant_of_the_graph_in_float64() -> None:
    def make() -> None:
        x = placeholder("x", (None, 8), tf.float64)
        epsilon = tf.constant(1e-3, tf.float64) * tf.constant(1 + 1e-7, tf.float64)
        tf.identity(layer_norm(x, -1, epsilon), name="y")

    _, report = rewrite(trace(make), fetches=["y"])
    (record,) = report.fused
    assert record.epsilon == pytest.approx(1e-3 * (1 + 1e-7), rel=1e-12)


def _shifted(x: tf.Tensor, how: str) -> tf.Tensor:
    """(x - mean) * rstd as x * rstd less something that has the mean, too."""
    mean, variance = moments(x)
    root = tf.math.rsqrt(variance + 1e-3)
    if how == "another rstd":
        return x * root - mean / tf.sqrt(variance + 1e-3)
    if how == "slices":
        return x * root - (mean[:, 0] * root[:, 0])[:, tf.newaxis]
    if how == "cast":
        return x * root - tf.cast(tf.cast(mean * root, tf.float64), tf.float32)
    return tf.reduce_sum(tf.stack([x * root, -mean * root * tf.ones_like(x)]), 0)


@pytest.mark.parametrize("how", ["another rstd", "slices", "cast", "stack"])
def test_a_mean_that_goes_on_outside(rng, how: str) -> None:
    """The two rstd would differ by their rounding, which a mean of 1e6 multiplies."""
    x = (rng.normal(0, 1, (3, 8)) + 1e6).astype(np.float32)
    graph = trace(lambda: tf.identity(_shifted(placeholder("x", (None, 8)), how), name="y"))
    after, _ = rewrite(graph, fetches=["y"])
    exact = oracle.layer_norm(x, epsilon=1e-3).y
    stock, fused = (np.abs(run(g, {"x": x}) - exact).max() for g in (graph, after))
    assert fused <= 2 * stock + 1e-5


def test_output_that_is_cut_off_not_rounded(rng) -> None:
    def make() -> None:
        x = placeholder("x", (None, 8))
        y = tf.identity(layer_norm(x, -1, 1e-3), name="wide")
        tf.raw_ops.Cast(x=y, DstT=tf.bfloat16, Truncate=True, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, device="CPU", fetches=["y"])
    assert [node.name for node in after.node if node.op == "Cast"] == ["y"]
    x = rng.normal(size=(64, 8)).astype(np.float32)
    exact = np.abs(oracle.layer_norm(x, epsilon=1e-3).y)
    cut_off = np.abs(run(after, {"x": x}).astype(np.float64))
    assert (cut_off <= exact * (1 + 1e-5)).all() and (cut_off < exact * (1 - 1e-3)).any()


@pytest.mark.parametrize("views", [(tf.float16,), (tf.float16, tf.bfloat16), (tf.float32,)])
def test_output_that_is_read_as_it_is_and_in_views(rng, views: tuple) -> None:
    """One op, of what all of them view."""

    def make() -> None:
        y = tf.identity(layer_norm(placeholder("x", (None, 8)), -1, 1e-3), name="y")
        for i, dtype in enumerate(views):
            tf.identity(tf.identity(tf.cast(y, dtype)), name=f"view_{i}")
        tf.tanh(y, name="end")

    fetches = ["end", *(f"view_{i}" for i in range(len(views)))]
    after, report = rewrite(trace(make), device="CPU", fetches=fetches)
    assert report.counts == {"layer_norm forward": 1} and not report.refused
    assert not {"Rsqrt", "Mean"} & {node.op for node in after.node}
    x = rng.normal(size=(3, 8)).astype(np.float32)
    y = oracle.layer_norm(x, epsilon=1e-3).y
    got = run(after, {"x": x}, [f"{name}:0" for name in fetches])
    for value, exact in zip(got, [np.tanh(y), *[y] * len(views)], strict=True):
        np.testing.assert_allclose(value.astype(np.float64), exact, 1e-2, 1e-2)
